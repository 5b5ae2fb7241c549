/* Under PR_SET_MDWE (MemoryDenyWriteExecute of systemd) memory that is or was writable is never executed: mmap with
 * both is refused, and compilers of programs fall back; memory that can be executed alone works. */
#include "hazard.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
enum { REFUSE_EXEC_GAIN = 1 };

static char *map(void *at, int prot, int flags)
{
    return mmap(at, 16 * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* Whether /proc shows that memory can be executed. */
static int is_executable(char *at)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096], access[8];
    unsigned long start, end;
    int is = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3 && start <= (unsigned long)at && end > (unsigned long)at)
            is = access[2] == 'x';
    fclose(maps);
    return is;
}

int main(void)
{
    if (prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
        return 77;
    CHECK(map(NULL, PROT_READ | PROT_WRITE | PROT_EXEC, 0) == MAP_FAILED && errno == EACCES);
    char *code = map(NULL, PROT_READ | PROT_EXEC, 0);
    CHECK(code != MAP_FAILED && is_executable(code));
    char *data = map(NULL, PROT_READ | PROT_WRITE, 0);
    CHECK(data != MAP_FAILED);
    memset(data, 1, 16 * PAGE);
    CHECK(mprotect(data, 16 * PAGE, PROT_READ | PROT_EXEC) == -1 && errno == EACCES);
    CHECK(data[0] == 1 && data[15 * PAGE] == 1);
    char *fixed = map(data, PROT_READ | PROT_EXEC, MAP_FIXED);
    CHECK(fixed == data && is_executable(fixed) && fixed[0] == 0);
    char *again = map(data, PROT_READ | PROT_WRITE, MAP_FIXED);
    CHECK(again == data && again[0] == 0);
    memset(again, 2, 16 * PAGE);
    CHECK(!is_executable(again) && again[15 * PAGE] == 2);
    CHECK(munmap(again, 16 * PAGE) == 0 && munmap(code, 16 * PAGE) == 0);
    return 0;
}
