/* selfpage run --frames 1M --store ram:1M */
/* Programs have contents before the pager is loaded into them (a table that is filled then, or copied from a library). They start while
 * frames and store are full: each has its contents, gets SIGBUS, or does not start (125). */
#include "hazard.h"
#include <spawn.h>
#include <sys/wait.h>

enum { TABLE = 256, NOISE = 360, MORE = 2048, ROUNDS = 3 };
static char table[TABLE * PAGE] __attribute__((aligned(PAGE)));
extern char **environ;

static void nothing(void) {}

/* Called as the program is relocated, before any library is initialised. */
static void (*fill_table(void))(void)
{
    fill(table, sizeof table, 1);
    return nothing;
}

static void table_is_filled(void) __attribute__((ifunc("fill_table")));

static void (*volatile at_start)(void) = table_is_filled;

static char *map(size_t pages)
{
    char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int child(void)
{
    /* By then there is room again. */
    sleep(2);
    if (!holds(table, sizeof table, 1))
        return 1;
    /* Evicts the table. */
    char *more = map(MORE);
    for (size_t page = 0; page < MORE; page++)
        memset(more + page * PAGE, page % 64, PAGE);
    return !holds(table, sizeof table, 1);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return child();
    alarm(100);
    at_start();
    CHECK(madvise(table, sizeof table, MADV_DONTNEED) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        char *noise = map(NOISE);
        fill(noise, NOISE * PAGE, round + 2);
        char *arguments[] = {argv[0], "child", NULL};
        pid_t child;
        int status;
        CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
        /* Its start meets a full store, and goes on once there is room. */
        sleep(1);
        CHECK(munmap(noise, NOISE * PAGE) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0 || (WIFSIGNALED(status) ? WTERMSIG(status) == SIGBUS : WEXITSTATUS(status) == 125));
    }
    return 0;
}
