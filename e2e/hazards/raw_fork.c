/* A fork that no library sees: _Fork runs no atfork handlers, and the bare system call
 * not even that. The child must see its memory as it was, or be ended loudly; what it
 * must never see is zeros. */
#include "hazard.h"

int main(void)
{
    size_t n = hazard_bytes();
    char *p = map_private(n);
    fill(p, n, 4);
    for (int i = 0; i < 3; i++) {
        pid_t child = i == 0 ? _Fork() : i == 1 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : (pid_t)syscall(SYS_fork);
        CHECK(child >= 0);
        if (child == 0) {
            for (size_t at = 0; at < n; at += PAGE)
                if (*(volatile uint64_t *)(p + at) != word_at(4, at / 8))
                    _exit(40 + i);
            _exit(0);
        }
        int status = end_of(child);
        if (WIFEXITED(status) && WEXITSTATUS(status) >= 40)
            fprintf(stderr, "the child of raw fork %d read wrong contents\n", i);
        CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        CHECK(holds(p, n, 4));
    }
    return 0;
}
