/* A program lowers its limit on address space, or on data, and goes on to use memory below it. The
 * limit reads as it was set, and is refused as the kernel refuses it. A fork's child may ask for it,
 * whatever other threads were asking for at the fork. */
#include "hazard.h"

static void *nothing(void *unused) { return unused; }

static void uses_memory_below(int resource)
{
    const rlim_t bytes = 512 * MB;
    struct rlimit limit = { bytes, bytes }, seen;
    CHECK(setrlimit(resource, &limit) == 0);
    CHECK(getrlimit(resource, &seen) == 0 && seen.rlim_cur == bytes && seen.rlim_max == bytes);
    char *memory = mmap(NULL, 8 * MB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, 8 * MB);
    for (int n = 0; n < 20; n++) {
        void *block = malloc(4 * MB);
        CHECK(block != NULL);
        memset(block, n, 4 * MB);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    errno = 0;
    limit.rlim_cur = bytes + 1;
    CHECK(setrlimit(resource, &limit) == -1 && errno == EINVAL);
    limit.rlim_cur = bytes / 2;
    CHECK(setrlimit(resource, &limit) == 0);
    CHECK(getrlimit(resource, &seen) == 0 && seen.rlim_cur == bytes / 2 && seen.rlim_max == bytes);
    errno = 0;
    CHECK(setrlimit(resource, (struct rlimit *)16) == -1 && errno == EFAULT);
    CHECK(getrlimit(resource, (struct rlimit *)16) == -1 && errno == EFAULT);
    /* Only with a privilege is a hard limit raised. */
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    limit.rlim_max = 2 * bytes;
    errno = 0;
    CHECK(setrlimit(resource, &limit) == -1 && errno == EPERM);
    CHECK(getrlimit(resource, &seen) == 0 && seen.rlim_max == bytes);
}

static void *asks(void *unused)
{
    struct rlimit limit;
    for (;;)
        CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    return unused;
}

static void forks_beside_a_thread_that_asks(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, asks, NULL) == 0);
    for (int n = 0; n < 100; n++) {
        pid_t child = checked_fork();
        if (child == 0) {
            struct rlimit limit;
            _exit(getrlimit(RLIMIT_AS, &limit) == 0 ? 0 : 1);
        }
        reap(child);
    }
}

int main(int count, char **given)
{
    if (count > 1) {
        uses_memory_below(given[1][0] == 'a' ? RLIMIT_AS : RLIMIT_DATA);
        return 0;
    }
    /* Where the heap lies differs from one process to the next. */
    for (int n = 0; n < 40; n++) {
        pid_t child = fork();
        if (child == 0) {
            char *arguments[] = { "limits", n % 2 ? "as" : "data", NULL };
            execv("/proc/self/exe", arguments);
            _exit(3);
        }
        reap(child);
    }
    forks_beside_a_thread_that_asks();
    puts("within the limits");
    return 0;
}
