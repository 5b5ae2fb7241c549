/* glibc's fork walks its list of open FILEs in the child before any handler runs: those
 * FILEs, and their buffers, may be paged out. */
#include "hazard.h"

int main(void)
{
    enum { FILES = 200 };
    FILE *file[FILES];
    for (int i = 0; i < FILES; i++) {
        file[i] = tmpfile();
        CHECK(file[i]);
        setvbuf(file[i], malloc(8192), _IOFBF, 8192);
        fprintf(file[i], "before %d\n", i);
        malloc(30000);
    }
    for (int round = 0; round < 5; round++) {
        push_out();
        pid_t child = checked_fork();
        if (child == 0) {
            for (int i = 0; i < FILES; i++) {
                CHECK(ftell(file[i]) == 0 + (long)snprintf(NULL, 0, "before %d\n", i));
                CHECK(ferror(file[i]) == 0);
            }
            FILE *more = fopen("/proc/self/status", "r");
            char line[100];
            CHECK(more && fgets(line, sizeof line, more));
            fclose(more);
            _exit(0);
        }
        reap(child);
    }
    char line[100];
    for (int i = 0; i < FILES; i++) {
        char want[100];
        snprintf(want, sizeof want, "before %d\n", i);
        rewind(file[i]);
        CHECK(fgets(line, sizeof line, file[i]) && strcmp(line, want) == 0);
        fclose(file[i]);
    }
    return 0;
}
