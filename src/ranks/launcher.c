// Launchers, by what they leave in the environment of the processes they start.
#include "ranks/ranks.h"

#include "core/debug.h"

#include <stdlib.h>

// Some say how many processes there are, and the first that does decides: mpirun -n 1 starts no
// several. Slurm's number is that of a step (srun): a batch script has that of the job, too, but
// runs alone. PMIx gives a process its rank alone.
bool qn_ranks_is_launched(void) {
    const qn_launch_marks marks = qn_launch_marks_read();
    const char *const sizes[] = {marks.ompi_size, marks.pmi_size, marks.slurm_step_size};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i]) return strtol(sizes[i], NULL, 10) > 1;
    }
    return marks.pmix_rank != NULL;
}
