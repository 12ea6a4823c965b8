// Nodes of memory, read from folders like /sys/devices/system/node, and the threads of a pool that
// are divided among them.
#include "testing.h"

#include "core/pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 256 };

typedef struct tree {
    char root[64];
    char paths[MAX_FILES][128]; // in the order in which they were made
    int n;
} tree;

static void begin(tree *t) {
    t->n = 0;
    snprintf(t->root, sizeof t->root, "/tmp/quern-numa-XXXXXX");
    assert_non_null(mkdtemp(t->root));
}

static void end(tree *t) {
    while (t->n) assert_int_equal(remove(t->paths[--t->n]), 0);
    assert_int_equal(rmdir(t->root), 0);
}

static void note(tree *t, const char *path) {
    assert_in_range(t->n, 0, MAX_FILES - 1);
    snprintf(t->paths[t->n++], sizeof t->paths[0], "%s", path);
}

// `name` may have one folder; NULL text: no file.
static void put(tree *t, const char *name, const char *text) {
    char path[128];
    const char *slash = strchr(name, '/');
    if (slash) {
        snprintf(path, sizeof path, "%s/%.*s", t->root, (int)(slash - name), name);
        if (mkdir(path, 0700) == 0) note(t, path);
    }
    if (!text) return;
    snprintf(path, sizeof path, "%s/%s", t->root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fprintf(f, "%s\n", text) > 0);
    assert_int_equal(fclose(f), 0);
    note(t, path);
}

static void put_node(tree *t, int node, const char *cpus, const char *distance) {
    char name[64];
    snprintf(name, sizeof name, "node%d/cpulist", node);
    put(t, name, cpus);
    if (!distance) return;
    snprintf(name, sizeof name, "node%d/distance", node);
    put(t, name, distance);
}

static qn_cpus all; // CPUs that there can be

static int fill_all(void **state) {
    (void)state;
    memset(&all, 0xff, sizeof all);
    return 0;
}

static void lists_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n; // -1: refused
    } cases[] = {
        {"", 0},
        {"0", 1},
        {"0-3", 4},
        {"0-1,4,6-7", 5},
        {"4095", 1},
        {"0-4095", 4096},
        {"3,3,2-4", 3},
        {"4096", -1},
        {"0-4096", -1},
        {"-1", -1},
        {"3-1", -1},
        {"1-", -1},
        {",", -1},
        {"1,", -1},
        {"1,,2", -1},
        {" 1", -1},
        {"1 ", -1},
        {"x", -1},
        {"0-3-5", -1},
        {"1.5", -1},
        {"0x10", -1},
        {"+1", -1},
        {"9999999999999", -1},
        {"0-99999999999999999999", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_cpus cpus;
        const bool is_read = qn_cpus_parse(&cpus, cases[i].text, QN_NUMA_CPUS - 1);
        if (is_read != (cases[i].n >= 0))
            fail_msg("'%s' is%s read", cases[i].text, is_read ? "" : " not");
        if (is_read) assert_int_equal(qn_cpus_count(&cpus), cases[i].n);
    }
    qn_cpus cpus;
    assert_true(qn_cpus_parse(&cpus, "2-3", 3));
    assert_true(qn_cpus_has(&cpus, 2) && !qn_cpus_has(&cpus, 1) && !qn_cpus_has(&cpus, -1) &&
                !qn_cpus_has(&cpus, QN_NUMA_CPUS));
    assert_true(qn_cpus_allowed(&cpus));
    assert_true(qn_cpus_count(&cpus) > 0);
}

// 1 to 8 nodes of uneven sizes: node k has k + 1 CPUs.
static void nodes_are_read(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++) {
        tree t;
        qn_numa numa;
        char text[64];
        int cpu = 0;
        begin(&t);
        snprintf(text, sizeof text, n > 1 ? "0-%d" : "%d", n - 1);
        put(&t, "online", text);
        put(&t, "has_memory", text);
        for (int k = 0; k < n; k++, cpu += k) {
            snprintf(text, sizeof text, "%d-%d", cpu, cpu + k);
            put_node(&t, k, text, NULL);
        }
        qn_numa_read(&numa, t.root, &all);
        assert_int_equal(numa.n_nodes, n > 1 ? n : 0);
        for (int k = 0; k < numa.n_nodes; k++) {
            assert_int_equal(numa.nodes[k].memory, k);
            assert_int_equal(numa.nodes[k].n_cpus, k + 1);
        }
        // Threads go to nodes in their order, each node having as many as CPUs where there are enough.
        for (int threads = 1; threads <= cpu && numa.n_nodes; threads++) {
            int counts[8] = {0}, before = 0;
            for (int i = 0; i < threads; i++) {
                const int node = qn_numa_node_of(&numa, i, threads);
                assert_in_range(node, before, n - 1);
                before = node;
                counts[node]++;
            }
            for (int k = 0; k < n; k++) // at most one more than its part
                assert_true(counts[k] * cpu <= (k + 1) * threads + cpu);
            for (int k = 0; threads == cpu && k < n; k++) assert_int_equal(counts[k], k + 1);
        }
        end(&t);
    }
}

static void nodes_may_lack_cpus_or_memory(void **state) {
    (void)state;
    tree t;
    qn_numa numa;
    begin(&t);
    put(&t, "online", "0-2,5");
    put(&t, "has_memory", "0,2,5");
    put_node(&t, 0, "0-1", "10 20 20 20");
    put_node(&t, 1, "2-3", "30 10 25 21"); // no memory; node 5 is nearest
    put_node(&t, 2, "", "20 20 10 20");    // memory only
    put_node(&t, 5, "4,6", "20 20 20 10"); // CPU 5 is offline
    qn_numa_read(&numa, t.root, &all);
    assert_int_equal(numa.n_nodes, 3);
    assert_int_equal(numa.n_cpus, 6);
    assert_int_equal(numa.nodes[1].memory, 5);
    assert_int_equal(numa.nodes[2].memory, 5);
    assert_true(qn_cpus_has(&numa.nodes[2].cpus, 6) && !qn_cpus_has(&numa.nodes[2].cpus, 5));
    end(&t);
    begin(&t); // without distances the first one, without has_memory each its own
    put(&t, "online", "0-1");
    put(&t, "has_memory", "1");
    put_node(&t, 0, "0", "garbage");
    put_node(&t, 1, "1", NULL);
    qn_numa_read(&numa, t.root, &all);
    assert_int_equal(numa.n_nodes, 2);
    assert_int_equal(numa.nodes[0].memory, 1);
    end(&t);
    begin(&t);
    put(&t, "online", "0-1");
    put_node(&t, 0, "0", NULL);
    put_node(&t, 1, "1", NULL);
    qn_numa_read(&numa, t.root, &all);
    assert_int_equal(numa.n_nodes, 2);
    assert_int_equal(numa.nodes[1].memory, 1);
    end(&t);
}

// Each is refused as a whole: there is nothing to decide.
static void what_contradicts_itself_is_one_node(void **state) {
    (void)state;
    static const struct {
        const char *online, *memory, *cpus[2];
    } cases[] = {
        {"0", NULL, {"0-3", NULL}},                 // one node
        {NULL, NULL, {"0-1", "2-3"}},               // no list of nodes
        {"0-1", NULL, {"0-1", NULL}},               // a node without its file
        {"0-1", NULL, {"0-2", "2-3"}},              // a CPU of two nodes
        {"0-1", NULL, {"0-1", "2-99999999999999"}}, // numbers that cannot be
        {"0-1", NULL, {"0-1", "2-4096"}},           //
        {"0-1", NULL, {"0-1", "3-2"}},              //
        {"0-64", NULL, {"0-1", "2-3"}},             // more nodes than are counted
        {"0-1", "none", {"0-1", "2-3"}},            //
        {"0-1", "", {"0-1", "2-3"}},                // no memory at all
        {"0-1", NULL, {"\x01\xff", "2-3"}},         //
        {"0-1", NULL, {"0-1", ""}},                 // one node with CPUs
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tree t;
        qn_numa numa;
        begin(&t);
        if (cases[i].online) put(&t, "online", cases[i].online);
        if (cases[i].memory) put(&t, "has_memory", cases[i].memory);
        for (int k = 0; k < 2; k++) {
            if (cases[i].cpus[k]) put_node(&t, k, cases[i].cpus[k], NULL);
        }
        qn_numa_read(&numa, t.root, &all);
        if (numa.n_nodes) fail_msg("case %zu has %d nodes", i, numa.n_nodes);
        end(&t);
    }
    qn_numa numa;
    qn_numa_read(&numa, "/nonexistent", &all);
    assert_int_equal(numa.n_nodes, 0);
}

static void some_cpus_are_not_ours(void **state) {
    (void)state;
    tree t;
    qn_numa numa;
    qn_cpus allowed;
    begin(&t);
    put(&t, "online", "0-1");
    put_node(&t, 0, "0-3", NULL);
    put_node(&t, 1, "4-7", NULL);
    assert_true(qn_cpus_parse(&allowed, "0-7", 7));
    qn_numa_read(&numa, t.root, &allowed);
    assert_int_equal(numa.n_nodes, 2);
    assert_true(qn_cpus_parse(&allowed, "0-6", 7));
    qn_numa_read(&numa, t.root, &allowed);
    assert_int_equal(numa.n_nodes, 0);
    end(&t);
}

// --- pools ---------------------------------------------------------------------------------------

typedef struct record {
    _Atomic int pinned[2]; // threads on each node
    int cpu;               // where the caller is
} record;

static bool pin(void *arg, const qn_cpus *cpus) {
    record *r = arg;
    r->pinned[qn_cpus_has(cpus, 2)]++;
    return false; // as in a container that forbids it
}

static int cpu_of(void *arg) { return ((record *)arg)->cpu; }

static void add_one(void *arg, int64_t piece) {
    (void)piece;
    atomic_fetch_add((_Atomic int64_t *)arg, 1);
}

static void workers_stay_on_their_nodes(void **state) {
    (void)state;
    record r = {.cpu = 0};
    qn_err err;
    qn_pool *pool;
    qn_numa numa = {.n_nodes = 2,
                    .n_cpus = 8,
                    .nodes = {{0, {{0x3}}, 2}, {1, {{0xfc}}, 6}},
                    .calls = {.arg = &r, .pin = pin, .cpu = cpu_of}};
    qn_pool_opts opts = {.n_threads = 8, .n_cpus = 8, .numa = &numa};
    ASSERT_OK(qn_pool_open(&pool, &opts, &err));
    assert_non_null(qn_pool_numa(pool));
    assert_int_equal(qn_pool_node(pool, 0).end, 2);
    assert_int_equal(qn_pool_node(pool, 1).first, 2);
    assert_int_equal(qn_pool_node(pool, 1).end, 8);
    assert_int_equal(qn_pool_near(pool, 1).first, 0);
    assert_int_equal(qn_pool_near(pool, 7).first, 2);
    assert_int_equal(qn_pool_near(pool, 0).first, 0);
    r.cpu = 5;
    assert_int_equal(qn_pool_near(pool, 0).first, 2);
    r.cpu = 1000; // of no node
    assert_int_equal(qn_pool_near(pool, 0).first, 0);
    _Atomic int64_t sum = 0;
    qn_pool_run(pool, 100, add_one, &sum);
    assert_int_equal(sum, 100);
    qn_pool_destroy(pool);
    assert_int_equal(r.pinned[0], 1); // the caller's thread is not the pool's
    assert_int_equal(r.pinned[1], 6);

    opts.n_threads = 9; // more than CPUs: they run anywhere
    opts.n_cpus = 9;
    ASSERT_OK(qn_pool_open(&pool, &opts, &err));
    assert_null(qn_pool_numa(pool));
    assert_int_equal(qn_pool_near(pool, 3).end, 9);
    qn_pool_destroy(pool);
    assert_int_equal(r.pinned[0] + r.pinned[1], 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(nodes_are_read),
        cmocka_unit_test(nodes_may_lack_cpus_or_memory),
        cmocka_unit_test(what_contradicts_itself_is_one_node),
        cmocka_unit_test(some_cpus_are_not_ours),
        cmocka_unit_test(workers_stay_on_their_nodes),
    };
    return cmocka_run_group_tests(tests, fill_all, NULL);
}
