/* Programs start with search paths of many lengths, for which the loader maps memory beside its libraries. */
#include "hazard.h"

#define FOLDER "/opt/packages/linux-x86_64/gcc-12.2.0/package-abcdefghijklmnop/lib:"

static void use_memory(void)
{
    size_t bytes = hazard_bytes();
    char *p = map_private(bytes);
    fill(p, bytes, 1);
    push_out();
    CHECK(holds(p, bytes, 1));
}

static void start_again(char *self, int folders)
{
    pid_t child = checked_fork();
    if (child == 0) {
        char *path = malloc(folders * sizeof FOLDER + 1), *end = path;
        for (int n = 0; n < folders; n++)
            end = stpcpy(end, FOLDER);
        CHECK(setenv("LD_LIBRARY_PATH", path, 1) == 0);
        execl("/proc/self/exe", self, "again", NULL);
        _exit(1);
    }
    reap(child);
}

int main(int argc, char **argv)
{
    alarm(60);
    if (argc > 1) {
        use_memory();
        return 0;
    }
    for (int folders = 25; folders <= 800; folders *= 2) {
        start_again(argv[0], folders);
        start_again(argv[0], folders * 3 / 2);
    }
    return 0;
}
