/* A file and then anonymous memory take the place of memory at an address of the program's choice, while other threads read
 * there: each read finds the one or the other, and none fails. */
#include "hazard.h"
#include <sys/syscall.h>

#define PAGES 64
#define READERS 3
#define ROUNDS 800

static volatile int stop;
static volatile char *const base = (char *)0x320000000000;

static void *reader(void *number)
{
    unsigned seed = (unsigned)(long)number;
    while (!stop) {
        char found = base[rand_r(&seed) % PAGES * PAGE];
        CHECK(found == 0 || found == 5);
    }
    return NULL;
}

static void map_there(int flags, int fd)
{
    void *at = (void *)base;
    int access = PROT_READ | PROT_WRITE;
    CHECK(mmap(at, PAGES * PAGE, access, MAP_PRIVATE | MAP_FIXED | flags, fd, 0) == at);
}

int main(void)
{
    pthread_t threads[READERS];
    int fd = (int)syscall(SYS_memfd_create, "file", 0);
    CHECK(fd >= 0 && ftruncate(fd, PAGES * PAGE) == 0);
    for (long page = 0; page < PAGES; page++)
        CHECK(pwrite(fd, "\5", 1, page * PAGE) == 1);
    map_there(MAP_ANONYMOUS, -1);
    for (long n = 0; n < READERS; n++)
        CHECK(pthread_create(&threads[n], NULL, reader, (void *)n) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        map_there(0, fd);
        map_there(MAP_ANONYMOUS, -1);
        if (round % 2 == 0)
            usleep(300);
        for (long page = 0; page < PAGES; page++)
            CHECK(base[page * PAGE] == 0);
    }
    stop = 1;
    for (int n = 0; n < READERS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    return 0;
}
