// Which experts are kept.
#include "runtime/residency_int.h"

// A token counts half after 138 others (0.995^138). Not measured.
static const float fade = 0.995f;
// A planned expert must be this much hotter than the one it replaces: both would change places
// again and again otherwise. Not measured apart.
static const float margin = 1.25f;
// Steps of decode between refreshes. Not measured.
// A step with this many more rows than sequences reads prompts: drafts are fewer.
enum { REFRESH_STEPS = 32, PREFILL_ROWS = 32 };

static float fade_of(int64_t tokens) {
    float result = 1, base = fade;
    for (; tokens > 0; tokens >>= 1, base *= base) {
        if (tokens & 1) result *= base;
    }
    return result;
}

// The column of the history that the current steps are counted in.
static uint32_t *history_row(const qn_residency *r, const qn_pool_layer *layer) {
    return layer->history + (r->columns - 1) * layer->n_experts;
}

void qn_residency_heat(qn_residency *r, qn_pool_layer *layer, const int32_t *experts,
                       const int32_t *rows, int32_t n) {
    const float factor = fade_of(r->rows);
    uint32_t *column = history_row(r, layer);
    for (int32_t e = 0; e < layer->n_experts; e++) layer->heat[e] *= factor;
    for (int32_t i = 0; i < n; i++) {
        layer->heat[experts[i]] += (float)rows[i];
        column[experts[i]] += (uint32_t)rows[i];
    }
}

int32_t qn_residency_victim(const qn_residency *r, const qn_pool_layer *layer) {
    int32_t found = -1;
    float least = 0;
    for (int32_t s = 0; s < r->n_slots; s++) {
        const qn_slot *slot = &layer->slots[s];
        if (slot->state == QN_SLOT_FREE) return s;
        if (slot->state == QN_SLOT_LOADING || layer->wants[slot->expert] != QN_WANT_NOT) continue;
        const float heat = layer->heat[slot->expert];
        if (found < 0 || heat < least) {
            found = s;
            least = heat;
        }
    }
    return found;
}

bool qn_residency_accept(int32_t *slot, const qn_residency *r, const qn_load *load) {
    const qn_pool_layer *layer = &r->layers[load->layer];
    if (r->active == load->layer || layer->slot_of[load->expert] >= 0) return false;
    const int32_t found = qn_residency_victim(r, layer);
    if (found < 0) return false;
    const qn_slot *old = &layer->slots[found];
    if (old->state == QN_SLOT_READY &&
        layer->heat[load->expert] <= margin * layer->heat[old->expert])
        return false;
    *slot = found;
    return true;
}

// The experts that are absent and hotter than the coldest that is there, the hottest first.
static void plan_layer(qn_residency *r, int32_t index) {
    const qn_pool_layer *layer = &r->layers[index];
    const int32_t coldest = qn_residency_victim(r, layer);
    if (coldest < 0) return;
    const qn_slot *slot = &layer->slots[coldest];
    const float least = slot->expert < 0 ? 0 : margin * layer->heat[slot->expert];
    for (int32_t e = 0; e < layer->n_experts; e++)
        r->hottest[e] = layer->slot_of[e] < 0 ? layer->heat[e] : 0;
    for (int64_t n = 0; n < r->n_slots; n++) {
        int32_t best = 0;
        for (int32_t e = 1; e < layer->n_experts; e++) {
            if (r->hottest[e] > r->hottest[best]) best = e;
        }
        if (r->hottest[best] <= least) return;
        r->hottest[best] = 0;
        r->planned[r->n_planned++] = (qn_load){.layer = index, .expert = best};
    }
}

// When all columns are in use, each two become one.
static void merge_columns(qn_residency *r) {
    for (int64_t l = 0; l < r->n_layers; l++) {
        const int64_t n = r->layers[l].n_experts;
        uint32_t *h = r->layers[l].history;
        for (int64_t c = 0; c < QN_EXPERT_TIMES / 2; c++) {
            for (int64_t e = 0; e < n; e++)
                h[c * n + e] = h[2 * c * n + e] + h[(2 * c + 1) * n + e];
        }
        for (int64_t i = QN_EXPERT_TIMES / 2 * n; i < QN_EXPERT_TIMES * n; i++) h[i] = 0;
    }
    r->columns = QN_EXPERT_TIMES / 2;
    r->per_column *= 2;
}

static void count_step(qn_residency *r) {
    r->steps++;
    if (r->steps % r->per_column) return;
    if (r->columns == QN_EXPERT_TIMES) merge_columns(r);
    r->columns++;
}

void qn_residency_refresh(qn_residency *r) {
    const bool is_prefill = r->rows - r->segs >= PREFILL_ROWS;
    count_step(r);
    if (!is_prefill && ++r->since_refresh < REFRESH_STEPS) return;
    r->since_refresh = 0;
    r->n_planned = r->first_planned = 0;
    for (int32_t l = 0; l < r->n_layers; l++) plan_layer(r, l);
}
