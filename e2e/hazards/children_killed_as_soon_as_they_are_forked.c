/* Children are killed at every moment of their start, in a program with a language of its own:
 * a child that cannot start prints a message, which the C library would translate. */
#include "hazard.h"
#include <locale.h>

#define CHILDREN 200

int main(void)
{
    if (!setlocale(LC_ALL, "C.UTF-8")) {
        fprintf(stderr, "there is no locale C.UTF-8\n");
        return 77;
    }
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = checked_fork();
        if (child == 0)
            for (;;)
                pause();
        for (volatile int spins = 0; spins < n * 2000; spins++)
            ;
        CHECK(kill(child, SIGKILL) == 0);
        int status = end_of(child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    return 0;
}
