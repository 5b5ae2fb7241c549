/* Memory under a protection key is paged like any: the pager needs no right to the key, and
 * the pages come back under it, for the threads that have it and for no others. */
#include "hazard.h"

static sigjmp_buf refused;

static void on_segv(int signal)
{
    (void)signal;
    siglongjmp(refused, 1);
}

int main(void)
{
    int key = pkey_alloc(0, 0);
    if (key < 0) {
        fprintf(stderr, "this processor or kernel has no protection keys\n");
        return 77;
    }
    size_t n = hazard_bytes() / 4;
    char *p = map_private(n);
    CHECK(pkey_mprotect(p, n, PROT_READ | PROT_WRITE, key) == 0);
    for (uint64_t round = 0; round < 3; round++) {
        fill(p, n, round);
        push_out();
        /* A system call meets the key's rights as a load does. */
        int fd = open("/dev/null", O_WRONLY);
        CHECK(pkey_set(key, PKEY_DISABLE_ACCESS) == 0);
        push_out();
        struct sigaction action = {.sa_handler = on_segv}, before;
        CHECK(sigaction(SIGSEGV, &action, &before) == 0);
        if (sigsetjmp(refused, 1) == 0) {
            *(volatile char *)(p + n / 2);
            CHECK(!"an access without the right went through");
        }
        CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
        CHECK(pkey_set(key, 0) == 0);
        CHECK(write(fd, p, n) == (ssize_t)n);
        close(fd);
        CHECK(holds(p, n, round));
    }
    CHECK(mprotect(p, n, PROT_READ) == 0);
    push_out();
    CHECK(holds(p, n, 2));
    CHECK(munmap(p, n) == 0 && pkey_free(key) == 0);
    push_out();
    return 0;
}
