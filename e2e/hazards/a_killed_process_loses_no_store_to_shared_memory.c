/* Children store to random pages of shared memory, tell their parent of each store, and are killed at any moment:
 * every store that was told of is there. */
#include "hazard.h"

enum { AT_ONCE = 3, GENERATIONS = 12 };

struct told {
    uint32_t page, value;
};

int main(void)
{
    size_t pages = hazard_bytes() / PAGE;
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return perror("mmap"), 1;
    uint32_t (*least)[AT_ONCE] = calloc(pages, sizeof *least);
    for (int generation = 0; generation < GENERATIONS; generation++) {
        pid_t children[AT_ONCE];
        int pipes[AT_ONCE];
        for (int child = 0; child < AT_ONCE; child++) {
            int both[2];
            if (pipe(both) != 0)
                return perror("pipe"), 1;
            children[child] = fork();
            if (children[child] == 0) {
                unsigned seed = generation * 31 + child * 7919 + 1;
                for (uint32_t value = generation << 24 | 1;; value++) {
                    seed = seed * 1103515245 + 12345;
                    struct told told = {(seed >> 8) % pages, value};
                    *(volatile uint32_t *)(memory + (size_t)told.page * PAGE + 64 * child) = value;
                    if (write(both[1], &told, sizeof told) != sizeof told)
                        _exit(1);
                }
            }
            close(both[1]);
            pipes[child] = both[0];
        }
        for (int child = 0; child < AT_ONCE; child++) {
            struct told told;
            int count = 0;
            while (read(pipes[child], &told, sizeof told) == sizeof told) {
                least[told.page][child] = told.value;
                if (++count == 1500 + 700 * generation)
                    kill(children[child], SIGKILL);
            }
            waitpid(children[child], NULL, 0);
            close(pipes[child]);
        }
    }
    for (size_t page = 0; page < pages; page++)
        for (int child = 0; child < AT_ONCE; child++) {
            uint32_t value = *(uint32_t *)(memory + page * PAGE + 64 * child);
            /* The one after the last that was told of may be there. */
            if (value < least[page][child])
                return printf("page %zu, child %d: %x, and %x was told of\n", page, child, value, least[page][child]), 1;
        }
    puts("whole");
    return 0;
}
