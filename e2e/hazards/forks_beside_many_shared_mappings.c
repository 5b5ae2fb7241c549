/* A process with hundreds of ranges of shared memory forks and executes programs. */
#include "hazard.h"

enum { RANGES = 400, LEN = 64 << 10 };

int main(void)
{
    char *at[RANGES];
    for (int i = 0; i < RANGES; i++) {
        at[i] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(at[i] != MAP_FAILED);
        at[i][0] = (char)i;
    }
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < RANGES; i++)
                CHECK(at[i][0] == (char)i);
            at[round][1] = 7;
            _exit(0);
        }
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        CHECK(at[round][1] == 7);
        CHECK(system("exit 3") == 3 << 8);
    }
    return 0;
}
