#define _GNU_SOURCE // ppoll
// A switch between network devices that holds every frame for a time, where the kernel has no
// queue that does so: for tools/netns.sh, which runs it in a namespace of its own.
//
//   bench_delay MICROSECONDS DEVICE DEVICE ...
#include "core/pool.h"

#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#ifndef PACKET_IGNORE_OUTGOING // Linux 4.20
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    MAX_PORTS = 16,
    MAX_FRAME = 66 << 10, // segments that the sender left to a card that is not there
    RING = 1 << 12,       // frames on their way
    ADDRESS = 6,          // bytes
    HEADER = sizeof(struct virtio_net_hdr),
};

typedef struct frame {
    int64_t due; // ns
    int from;
    size_t size;
    unsigned char *bytes; // (size) the header of the queue, then the frame
} frame;

typedef struct fabric {
    int64_t delay;
    int n_ports, sockets[MAX_PORTS];
    unsigned char addresses[MAX_PORTS][ADDRESS]; // behind each port: each has one
    frame ring[RING];
    size_t first, n;
} fabric;

static _Noreturn void stop(const char *what) {
    fprintf(stderr, "bench_delay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int open_port(const char *device) {
    const int on = 1;
    const int s = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    const struct sockaddr_ll at = {.sll_family = AF_PACKET,
                                   .sll_protocol = htons(ETH_P_ALL),
                                   .sll_ifindex = (int)if_nametoindex(device)};
    if (s < 0 || at.sll_ifindex == 0 ||
        setsockopt(s, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
        setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
        bind(s, (const struct sockaddr *)&at, sizeof at) != 0)
        stop(device);
    return s;
}

// Takes all frames that have come through a port.
static void take(fabric *f, int port) {
    static unsigned char room[MAX_FRAME];
    while (f->n < RING) {
        const ssize_t size = recv(f->sockets[port], room, sizeof room, MSG_DONTWAIT);
        if (size < HEADER + 2 * ADDRESS) return;
        frame *to = &f->ring[(f->first + f->n++) % RING];
        *to = (frame){.due = qn_clock() + f->delay,
                      .from = port,
                      .size = (size_t)size,
                      .bytes = malloc((size_t)size)};
        if (!to->bytes) stop("a frame");
        memcpy(to->bytes, room, (size_t)size);
        memcpy(f->addresses[port], room + HEADER + ADDRESS, ADDRESS);
    }
}

// To the port of its address; to all others while that is not known. What a full queue refuses is
// lost, as with any switch.
static void give(const fabric *f, const frame *what) {
    const unsigned char *to = what->bytes + HEADER;
    int only = -1;
    for (int p = 0; p < f->n_ports; p++) {
        if (memcmp(f->addresses[p], to, ADDRESS) == 0) only = p;
    }
    for (int p = 0; p < f->n_ports; p++) {
        if (p != what->from && (only < 0 || only == p))
            (void)!send(f->sockets[p], what->bytes, what->size, 0);
    }
}

static void give_due(fabric *f) {
    const int64_t now = qn_clock();
    while (f->n > 0 && f->ring[f->first].due <= now) {
        give(f, &f->ring[f->first]);
        free(f->ring[f->first].bytes);
        f->first = (f->first + 1) % RING;
        f->n--;
    }
}

static void serve(fabric *f) {
    struct pollfd ports[MAX_PORTS];
    for (int p = 0; p < f->n_ports; p++)
        ports[p] = (struct pollfd){.fd = f->sockets[p], .events = POLLIN};
    for (;;) {
        const int64_t left = f->n > 0 ? f->ring[f->first].due - qn_clock() : INT64_MAX;
        const struct timespec wait = {.tv_sec = 0, .tv_nsec = left > 0 ? (long)left : 0};
        const bool is_soon = left < 1000000000;
        if (ppoll(ports, (nfds_t)f->n_ports, is_soon ? &wait : NULL, NULL) < 0 && errno != EINTR)
            stop("waiting");
        for (int p = 0; p < f->n_ports; p++) take(f, p);
        give_due(f);
    }
}

int main(int argc, char **argv) {
    static fabric f;
    char *end = NULL;
    if (argc < 4) {
        puts("bench_delay MICROSECONDS DEVICE DEVICE ...: a switch that delays (tools/netns.sh)");
        return argc > 1 ? 2 : 0;
    }
    const long us = strtol(argv[1], &end, 10);
    if (*end || us < 0 || us > 500000 || argc - 2 > MAX_PORTS) {
        fprintf(stderr, "bench_delay: %s us between %d devices, want 0 to 500000 and %d at most\n",
                argv[1], argc - 2, MAX_PORTS);
        return 2;
    }
    f.delay = us * 1000;
    f.n_ports = argc - 2;
    for (int p = 0; p < f.n_ports; p++) f.sockets[p] = open_port(argv[p + 2]);
    (void)prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); // else waits end up to 50 us late
    serve(&f);
}
