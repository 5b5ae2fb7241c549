/* selfpage run --frames 1M --store ram:256K */
/* The store is full, and an access to a page waits for a frame that does not come. Meanwhile another thread maps a file over the
 * page: the access reads the file's byte, or fails. */
#include "hazard.h"

static const size_t mib = 1ul << 20;

enum { ROUNDS = 6, MOST = 4096 };
static sigjmp_buf full;
static _Thread_local sigjmp_buf failed;
static _Thread_local volatile int guarded;
static unsigned char *volatile target;
static volatile int turn, done;

static void on_fault(int signal)
{
    siglongjmp(guarded ? failed : full, signal);
}

static void *accessor(void *unused)
{
    for (int n = 1; n <= ROUNDS; n++) {
        while (turn != n)
            usleep(100);
        guarded = 1;
        if (sigsetjmp(failed, 1) == 0)
            CHECK(*(volatile unsigned char *)target == 'A' || *target == 0);
        guarded = 0;
        done = n;
    }
    return unused;
}

int main(void)
{
    alarm(60);
    signal(SIGBUS, on_fault);
    int fd = memfd_create("file", 0);
    CHECK(fd >= 0 && ftruncate(fd, PAGE) == 0 && pwrite(fd, "A", 1, 0) == 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, accessor, NULL) == 0);
    char *fresh = mmap(NULL, 2 * ROUNDS * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *noise = mmap(NULL, MOST * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fresh != MAP_FAILED && noise != MAP_FAILED);
    if (sigsetjmp(full, 1) == 0)
        for (size_t page = 0; page < MOST; page++)
            fill(noise + page * PAGE, PAGE, page + 1);
    for (int n = 1; n <= ROUNDS; n++) {
        target = (unsigned char *)fresh + (2 * n - 1) * mib;
        turn = n;
        usleep(50000);
        CHECK(mmap(target, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == target);
        while (done != n)
            usleep(1000);
        CHECK(*target == 'A');
    }
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
