/* The operations of futex(2) that change a word themselves, on words whose pages have left. */
#include "hazard.h"
#include <linux/futex.h>

enum { WORDS = 16 };

static int *word_of(char *memory, size_t bytes, int n)
{
    return (int *)(memory + bytes / WORDS * n);
}

int main(void)
{
    size_t bytes = hazard_bytes();
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < bytes; at += PAGE)
            *(uint64_t *)(memory + at) = 0;
        /* The first words have left by now. */
        int *word[8];
        for (int n = 0; n < 8; n++)
            word[n] = word_of(memory, bytes, n);
        int private = FUTEX_PRIVATE_FLAG, add = FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0);
        CHECK(syscall(SYS_futex, word[0], FUTEX_WAKE_OP | private, 1, 1, word[1], add) == 0);
        CHECK(*word[1] == 5);
        int owner = syscall(SYS_gettid);
        CHECK(syscall(SYS_futex, word[2], FUTEX_LOCK_PI | private, 0, NULL, NULL, 0) == 0);
        CHECK(*word[2] == owner);
        CHECK(syscall(SYS_futex, word[3], FUTEX_TRYLOCK_PI, 0, NULL, NULL, 0) == 0);
        CHECK(*word[3] == owner);
        CHECK(syscall(SYS_futex, word[4], FUTEX_CMP_REQUEUE_PI | private, 1, 1, word[5], 0) == 0);
        CHECK(syscall(SYS_futex, word[2], FUTEX_UNLOCK_PI | private, 0, NULL, NULL, 0) == 0);
        CHECK(syscall(SYS_futex, word[3], FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0);
        errno = 0;
        CHECK(syscall(SYS_futex, 16, FUTEX_LOCK_PI | private, 0, NULL, NULL, 0) == -1 && errno == EFAULT);
    }
    puts("changed");
    return 0;
}
