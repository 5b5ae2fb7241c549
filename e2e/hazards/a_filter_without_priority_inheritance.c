/* A program's filter allows the operations of futex that wait and wake, and ends the program at those of priority
 * inheritance. Its threads map and unmap memory at a time, before and after, and its fork's child
 * pages under the filter. */
#include "hazard.h"
#include <linux/futex.h>
#include <stddef.h>

enum { THREADS = 4 };

static atomic_int filtered;

static void *map_and_unmap(void *unused)
{
    for (int turn = 0; turn < 3000 || !filtered; turn++) {
        char *memory = mmap(NULL, MB / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        memory[0] = 1;
        CHECK(!munmap(memory, MB / 4));
    }
    return unused;
}

static void install(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 7),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, FUTEX_CMD_MASK),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_LOCK_PI, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_UNLOCK_PI, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_TRYLOCK_PI, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_LOCK_PI2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };

    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

int main(void)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, map_and_unmap, NULL));
    usleep(20000);
    install();
    filtered = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    pid_t child = checked_fork();
    if (child == 0) {
        size_t bytes = hazard_bytes();
        char *memory = map_private(bytes);
        fill(memory, bytes, 3);
        _exit(holds(memory, bytes, 3) ? 0 : 1);
    }
    reap(child);
    return 0;
}
