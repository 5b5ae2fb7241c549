/* Each child of a chain of forks pages, and forks the next: what the pager maps for itself in one generation is
 * not there in the next one as well. */
#include "hazard.h"

#define GENERATIONS 60
#define FIRST 10
/* Of what a generation maps anew, and of memory that comes in pieces. */
#define SLACK 90

static int mappings(void)
{
    static char text[1 << 16];
    int count = 0, fd = open("/proc/self/maps", O_RDONLY);
    CHECK(fd >= 0);
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < n; i++)
            count += text[i] == '\n';
    CHECK(close(fd) == 0);
    return count;
}

int main(void)
{
    size_t bytes = hazard_bytes() / 3;
    char *p = map_private(bytes);
    int first = 0;
    for (int generation = 0; generation < GENERATIONS; generation++) {
        for (size_t i = 0; i < bytes; i += PAGE)
            *(size_t *)(p + i) += i + generation;
        if (generation == FIRST)
            first = mappings();
        pid_t child = checked_fork();
        if (child > 0) {
            int status = end_of(child);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
    }
    CHECK(mappings() < first + SLACK);
    for (size_t i = 0; i < bytes; i += PAGE)
        CHECK(*(size_t *)(p + i) == GENERATIONS * i + GENERATIONS * (GENERATIONS - 1) / 2);
    return 0;
}
