/* As many processes as the smaller frames of these tests have room for: each time one has ended another one is forked, and all begin
 * an image at once. */
#include "hazard.h"

enum { CHILDREN = 126, FORKS = 400 };

static void one_for_each_that_ended(void)
{
    int live = 0, status;
    for (int n = 0; n < FORKS; n++) {
        if (live == CHILDREN) {
            CHECK(wait(&status) > 0 && status == 0);
            live--;
        }
        pid_t child = checked_fork();
        if (child == 0) {
            usleep(1000);
            _exit(0);
        }
        live++;
    }
    for (; live > 0; live--)
        CHECK(wait(&status) > 0 && status == 0);
}

static void images_at_once(char *self)
{
    int begin[2];
    CHECK(pipe(begin) == 0);
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = checked_fork();
        if (child == 0) {
            char byte;
            close(begin[1]);
            CHECK(read(begin[0], &byte, 1) == 0);
            execl("/proc/self/exe", self, "image", NULL);
            _exit(9);
        }
    }
    close(begin[0]);
    close(begin[1]);
    for (int n = 0; n < CHILDREN; n++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        usleep(200000);
        return 0;
    }
    one_for_each_that_ended();
    images_at_once(argv[0]);
    return 0;
}
