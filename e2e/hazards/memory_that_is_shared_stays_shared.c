/* MAP_SHARED memory (anonymous, memfd, SysV) is one memory across fork, and private file
 * mappings are copied on write: none of it may become private zeros. */
#include "hazard.h"
#include <sys/ipc.h>
#include <sys/shm.h>

int main(void)
{
    size_t n = 8 * MB;
    char *anonymous = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(anonymous != MAP_FAILED);
    int memfd = memfd_create("hazard", 0);
    CHECK(memfd >= 0 && ftruncate(memfd, n) == 0);
    char *file = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    int id = shmget(IPC_PRIVATE, n, IPC_CREAT | 0600);
    CHECK(id >= 0);
    char *sysv = shmat(id, NULL, 0);
    CHECK(sysv != (void *)-1);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    pthread_mutex_t *mutex = (pthread_mutex_t *)anonymous;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_mutex_init(mutex, &attributes) == 0);
    volatile long *count = (long *)(anonymous + PAGE);
    fill(file, n, 1), fill(sysv, n, 2);

    FILE *disk = tmpfile();
    CHECK(disk && ftruncate(fileno(disk), n) == 0);
    char *original = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(disk), 0);
    fill(original, n, 3);
    char *copy = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(disk), 0);
    for (size_t at = 0; at < n; at += 2 * PAGE)
        *(volatile uint64_t *)(copy + at) = ~word_at(3, at / 8);

    pid_t child[4];
    for (int i = 0; i < 4; i++) {
        child[i] = checked_fork();
        if (child[i] == 0) {
            push_out();
            CHECK(holds(file, n, 1) && holds(sysv, n - PAGE, 2));
            for (int k = 0; k < 20000; k++) {
                CHECK(pthread_mutex_lock(mutex) == 0);
                ++*count;
                CHECK(pthread_mutex_unlock(mutex) == 0);
            }
            sysv[n - 1 - i] = 'c';
            for (size_t at = 0; at < n; at += PAGE)
                CHECK(*(volatile uint64_t *)(copy + at) == (at / PAGE % 2 ? word_at(3, at / 8) : ~word_at(3, at / 8)));
            memset(copy, i, n);
            _exit(0);
        }
    }
    push_out();
    for (int i = 0; i < 4; i++)
        reap(child[i]);
    CHECK(*count == 80000);
    CHECK(memcmp(sysv + n - 4, "cccc", 4) == 0);
    CHECK(holds(original, n, 3));
    for (size_t at = 0; at < n; at += PAGE)
        CHECK(*(volatile uint64_t *)(copy + at) == (at / PAGE % 2 ? word_at(3, at / 8) : ~word_at(3, at / 8)));
    return 0;
}
