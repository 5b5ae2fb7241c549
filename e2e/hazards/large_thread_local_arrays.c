/* A program with a large thread-local array holds it once for each of its threads, not for the pager's. Threads and
 * children have arrays of their own. */
#include "hazard.h"

#define LENGTH (32 * MB)

static __thread char array[LENGTH];
static __thread int number = 7;

static size_t resident_megabytes(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    size_t kilobytes = 0;
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %zu", &kilobytes);
    fclose(status);
    return kilobytes >> 10;
}

static void *uses_its_own(void *unused)
{
    CHECK(number == 7 && array[LENGTH / 2] == 0);
    fill(array, LENGTH, 2);
    CHECK(holds(array, LENGTH, 2));
    return unused;
}

int main(void)
{
    CHECK(resident_megabytes() < 3 * LENGTH / MB);
    fill(array, LENGTH, 1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, uses_its_own, NULL) == 0 && pthread_join(thread, NULL) == 0);
    pid_t child = checked_fork();
    if (child == 0) {
        CHECK(number == 7 && holds(array, LENGTH, 1));
        _exit(0);
    }
    reap(child);
    CHECK(holds(array, LENGTH, 1));
    return 0;
}
