// What names of model files say: the type of the weights, the part of a split set, a vision tower.
#ifndef QN_HUB_FILENAME_H
#define QN_HUB_FILENAME_H

#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>

bool qn_name_ends(const char *name, const char *end); // letters of any case
bool qn_name_is_gguf(const char *name);
// A tower for images, which is no model by itself.
bool qn_name_is_tower(const char *name);

// "-00001-of-00003.gguf" at the end of a path.
typedef struct qn_split_name {
    int part, of; // 0: it is no part of a set
    size_t stem;  // bytes before that, or before ".gguf"
} qn_split_name;
qn_split_name qn_split_name_read(const char *path);
enum { QN_SPLIT_MOST = 999, QN_SPLIT_SUFFIX = 21 };
// The path of another part of the same set (owned: qn_free). NULL: no memory.
char *qn_split_name_part(const char *path, const qn_split_name *split, int part);

// Types that are taken where nobody says one, the best first; at last, NULL, any. Towers are small
// beside their models: 16 bits, the usual form, lose nothing that shows.
enum { QN_MODEL_TYPES = 3, QN_TOWER_TYPES = 4 };
extern const char *const qn_model_types[QN_MODEL_TYPES], *const qn_tower_types[QN_TOWER_TYPES];

// The last part of the name that is a type, such as "Q4_K_M" or "UD-Q4_K_XL"; size 0: none.
qn_str qn_name_type(const char *name);
// Whether a path has that type, as a word by itself, letters of any case.
bool qn_name_has_type(const char *path, const char *type);

// "A, B and 3 more": those of `n` names that are listed, and how many are not.
void qn_names_join(char *to, size_t size, const char *const *names, size_t n_listed, size_t n);

#endif
