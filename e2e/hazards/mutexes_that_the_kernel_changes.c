/* selfpage run --frames 1M */
/* Mutexes in memory that is paged, whose words the kernel changes. Two threads contend for one with priority
 * inheritance while the handlers of their signals use more memory than the frames hold: between a thread's own use of
 * the word and its system call, too. A process is killed that holds a robust mutex in a file, and then
 * one in paged memory: the next owner of the first is told. Mutexes come and go, in one page and
 * across two. */
#include "hazard.h"

#define SPAN (12 * MB)

static char *memory;
static pthread_mutex_t *contended;
static atomic_int handled, stop;

static void use_memory(unsigned pages)
{
    static atomic_uint next = 9;

    while (pages-- > 0)
        memory[mix(atomic_fetch_add(&next, 1)) % (SPAN / PAGE) * PAGE]++;
}

static void on_signal(int signal)
{
    (void)signal;
    use_memory(500);
    handled++;
}

static void *contend(void *unused)
{
    while (!stop) {
        CHECK(pthread_mutex_lock(contended) == 0);
        for (volatile int turn = 0; turn < 200; turn++)
            ;
        CHECK(pthread_mutex_unlock(contended) == 0);
    }
    return unused;
}

static void contention(void)
{
    pthread_mutexattr_t inherit;
    pthread_t threads[2];

    CHECK(!pthread_mutexattr_init(&inherit) && !pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT));
    CHECK(!pthread_mutex_init(contended, &inherit));
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, contend, NULL));
    for (int sent = 0; sent < 100; sent++) {
        CHECK(!pthread_kill(threads[sent % 2], SIGUSR1));
        while (handled <= sent)
            usleep(100);
    }
    stop = 1;
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_join(threads[i], NULL));
    CHECK(!pthread_mutex_destroy(contended));
}

static void dead_owner(pthread_mutexattr_t *robust)
{
    int file = memfd_create("shared", MFD_CLOEXEC), ready[2];
    CHECK(file >= 0 && !ftruncate(file, PAGE) && !pipe(ready));
    pthread_mutex_t *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED && !pthread_mutex_init(shared, robust) && !pthread_mutex_init(contended, robust));
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(!pthread_mutex_lock(shared) && !pthread_mutex_lock(contended));
        use_memory(10000);
        CHECK(write(ready[1], "", 1) == 1);
        pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1 && !kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    CHECK(pthread_mutex_timedlock(shared, &until) == EOWNERDEAD);
    CHECK(!pthread_mutex_consistent(shared) && !pthread_mutex_unlock(shared));
    CHECK(!pthread_mutex_destroy(contended));
}

static void many(pthread_mutexattr_t *robust)
{
    enum { COUNT = 2000 };
    char *place = mmap(NULL, COUNT * 48, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            CHECK(!pthread_mutex_init((pthread_mutex_t *)(place + i * 48), robust));
        use_memory(2000);
        for (int i = 0; i < COUNT; i++) {
            pthread_mutex_t *mutex = (pthread_mutex_t *)(place + i * 48);
            CHECK(!pthread_mutex_lock(mutex) && !pthread_mutex_unlock(mutex));
            /* One in seven stays, and is initialised again. */
            CHECK(i % 7 == 0 || !pthread_mutex_destroy(mutex));
        }
    }
    CHECK(!munmap(place, COUNT * 48));
}

int main(void)
{
    memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    contended = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && contended != MAP_FAILED);
    memset(memory, 1, SPAN);

    pthread_mutexattr_t robust;
    CHECK(!pthread_mutexattr_init(&robust) && !pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST));
    CHECK(!pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED));
    dead_owner(&robust);
    many(&robust);
    contention();
    /* What was nailed is not any more: all the memory fits through the frames. */
    for (int turn = 0; turn < 3; turn++)
        for (size_t page = 0; page < SPAN / PAGE; page++)
            memory[page * PAGE]++;
    return 0;
}
