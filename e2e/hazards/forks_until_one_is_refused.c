/* A program forks more children than there may be room for. A child that a fork returned has its memory and ends by itself;
 * one that there is no room for was never there, and the program goes on. */
#include "hazard.h"

enum { CHILDREN = 24, PAGES = 64 };

int main(void)
{
    int ends[2], made = 0;
    pid_t children[CHILDREN];
    volatile uint64_t *words = map_private(PAGES * PAGE);
    for (size_t i = 0; i < PAGES; i++)
        words[i * PAGE / 8] = mix(i);
    CHECK(pipe(ends) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = fork();
        if (child < 0) {
            CHECK(errno == EAGAIN && paged());
            continue;
        }
        if (child == 0) {
            char byte;
            close(ends[1]);
            CHECK(read(ends[0], &byte, 1) == 0);
            for (size_t i = 0; i < PAGES; i++)
                CHECK(words[i * PAGE / 8] == mix(i));
            _exit(0);
        }
        children[made++] = child;
    }
    close(ends[1]);
    for (int n = 0; n < made; n++)
        reap(children[n]);
    CHECK(waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
    for (size_t i = 0; i < PAGES; i++)
        CHECK(words[i * PAGE / 8] == mix(i));
    return 0;
}
