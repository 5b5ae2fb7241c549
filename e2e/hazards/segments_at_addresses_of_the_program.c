/* System V shared memory at addresses that the program chooses: over private memory, where it has unmapped some,
 * detached whole and in parts, and in children. */
#include "hazard.h"
#include <sys/ipc.h>
#include <sys/shm.h>

static size_t bytes;

static int attached(int id)
{
    struct shmid_ds stat;
    CHECK(shmctl(id, IPC_STAT, &stat) == 0);
    return stat.shm_nattch;
}

/* A child's memory may end later than the child, while another process looks at it in /proc. */
static int becomes_attached(int id, int count)
{
    for (int look = 0; look < 5000 && attached(id) != count; look++)
        usleep(1000);
    return attached(id) == count;
}

/* Private memory of three times the segment. */
static char *three(void)
{
    char *at = mmap(NULL, 3 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (int part = 0; part < 3; part++)
        fill(at + part * bytes, bytes, 1);
    return at;
}

static void in_child(char *segment)
{
    pid_t pid = checked_fork();
    if (pid == 0) {
        CHECK(holds(segment, bytes, 2));
        fill(segment, PAGE, 3);
        CHECK(shmdt(segment) == 0);
        char *at = mmap(segment, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(at == segment && all_zero(at, bytes));
        fill(at, bytes, 4);
        _exit(0);
    }
    reap(pid);
    CHECK(holds(segment, PAGE, 3));
    fill(segment, PAGE, 2);
}

int main(void)
{
    bytes = hazard_bytes() / 16 / PAGE * PAGE;
    int id = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
    if (id == -1 && (errno == ENOSYS || errno == ENOSPC))
        return 77;
    CHECK(id != -1);
    char *elsewhere = shmat(id, NULL, 0);
    CHECK(elsewhere != (void *)-1);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    fill(elsewhere, bytes, 2);
    for (int round = 0; round < 3; round++) {
        char *at = three();
        char *middle = at + bytes;
        /* Refused where something is mapped. */
        CHECK(shmat(id, middle, 0) == (void *)-1 && errno == EINVAL);
        CHECK(shmat(id, middle + 1, SHM_REMAP) == (void *)-1 && errno == EINVAL);
        CHECK(holds(at, bytes, 1) && holds(middle, bytes, 1));
        CHECK(shmat(id, middle + 1, SHM_REMAP | SHM_RND) == middle);
        CHECK(becomes_attached(id, 2));
        CHECK(holds(at, bytes, 1) && holds(middle, bytes, 2) && holds(middle + bytes, bytes, 1));
        in_child(middle);
        switch (round) {
        case 0:
            CHECK(shmdt(middle) == 0);
            break;
        case 1:
            CHECK(munmap(middle, bytes) == 0);
            break;
        default:
            CHECK(munmap(middle + 4 * PAGE, PAGE) == 0);
            CHECK(mprotect(middle + 8 * PAGE, PAGE, PROT_READ) == 0);
            CHECK(shmdt(middle) == 0);
            break;
        }
        CHECK(becomes_attached(id, 1));
        CHECK(shmdt(middle) == -1 && errno == EINVAL);
        /* What is mapped there next is of the program alone. */
        char *fresh = mmap(middle, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(fresh == middle && all_zero(middle, bytes));
        fill(middle, bytes, 5);
        CHECK(holds(elsewhere, bytes, 2) && holds(middle + bytes, bytes, 1));
        /* Addresses that are free are free for a segment. */
        CHECK(munmap(middle, bytes) == 0);
        CHECK(shmat(id, middle, 0) == middle && holds(middle, bytes, 2));
        CHECK(syscall(SYS_shmdt, middle) == 0);
        CHECK(syscall(SYS_shmat, id, middle, 0) == (long)middle);
        CHECK(shmdt(middle) == 0);
        CHECK(munmap(at, 3 * bytes) == 0);
    }
    CHECK(shmdt(elsewhere) == 0);
    return 0;
}
