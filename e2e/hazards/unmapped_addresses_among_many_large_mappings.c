/* Each of several hundred mappings is larger than what the pager reserves at a time. What was unmapped is a SIGSEGV,
 * wherever it lay. */
#include "hazard.h"

#define MAPPINGS 600
#define LENGTH (4096 * MB + PAGE)

static char *mappings[MAPPINGS];

int main(void)
{
    for (int n = 0; n < MAPPINGS; n++) {
        mappings[n] = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(mappings[n] != MAP_FAILED);
        mappings[n][5] = n;
    }
    for (int n = 0; n < MAPPINGS; n += 19) {
        CHECK(munmap(mappings[n], LENGTH) == 0);
        pid_t child = checked_fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            *(volatile char *)(mappings[n] + 5) = 1;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    for (int n = 1; n < MAPPINGS; n += 19)
        CHECK(mappings[n][5] == (char)n);
    return 0;
}
