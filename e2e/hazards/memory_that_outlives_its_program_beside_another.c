/* A process that shares the memory of a program which has ended unmaps some of it. Pages of another program, which may have
 * that one's place by now, are not among them. */
#include "hazard.h"

struct sharer { int go, done; char *memory; size_t bytes; };

static int unmap_late(void *arg)
{
    struct sharer *s = arg;
    char word;
    if (read(s->go, &word, 1) == 1) {
        munmap(s->memory, s->bytes);
        word = 'U';
        if (write(s->done, &word, 1) != 1)
            _exit(1);
    }
    _exit(0);
}

static void unmap_beside_another(size_t n)
{
    int go[2], done[2];
    char word = 'G';
    CHECK(pipe(go) == 0 && pipe(done) == 0);
    pid_t parent = checked_fork();
    if (parent == 0) {
        close(go[1]), close(done[0]);
        /* Shared memory is not paged: the process runs on a stack that stays. */
        char *stack = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(stack != MAP_FAILED);
        struct sharer *s = (void *)stack;
        *s = (struct sharer){go[0], done[1], map_private(n), n};
        fill(s->memory, n, 1);
        CHECK(clone(unmap_late, stack + 16 * PAGE, CLONE_VM | SIGCHLD, s) > 0);
        _exit(0);
    }
    close(go[0]), close(done[1]);
    CHECK(waitpid(parent, NULL, 0) == parent);
    nap(50);
    pid_t other = checked_fork();
    if (other == 0) {
        char *own = map_private(n);
        fill(own, n, 2);
        CHECK(write(go[1], &word, 1) == 1);
        /* Its end is as good: it may have touched a page that is lost with its program. */
        ssize_t got = read(done[0], &word, 1);
        CHECK(got == 0 || word == 'U');
        nap(50);
        CHECK(holds(own, n, 2) && holds(own, n, 2));
        _exit(0);
    }
    close(go[1]), close(done[0]);
    reap(other);
}

int main(void)
{
    for (int i = 0; i < 3; i++)
        unmap_beside_another(hazard_bytes() / 4);
    return 0;
}
