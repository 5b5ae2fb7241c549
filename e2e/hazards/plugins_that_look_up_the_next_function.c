/* Plug-ins look up the next definition of a function behind them (RTLD_NEXT), as those do that bring an allocator or
 * wrap system calls. What it frees, gives and discards is the memory of the rest of the program. */
#include "hazard.h"

static const char SOURCE[] =
    "#define _GNU_SOURCE\n#include <dlfcn.h>\n"
    "void *next(const char *name) { void *found = dlsym(RTLD_NEXT, name); return found; }\n"
    "const char *why(void) { return dlerror(); }\n";

static void build(const char *path)
{
    char command[128];
    snprintf(command, sizeof command, "cc -shared -fPIC -x c -O1 -o %s -", path);
    FILE *compiler = popen(command, "w");
    CHECK(compiler && fputs(SOURCE, compiler) >= 0 && pclose(compiler) == 0);
}

int main(void)
{
    char folder[] = "next.XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plugin.so", folder);
    build(path);
    void *plugin = dlopen(path, RTLD_NOW);
    CHECK(plugin && unlink(path) == 0 && rmdir(folder) == 0);
    void *(*next)(const char *) = dlsym(plugin, "next");
    const char *(*why)(void) = dlsym(plugin, "why");
    CHECK(next && why);

    void (*release)(void *) = next("free");
    void *(*allocate)(size_t) = next("malloc");
    for (int n = 1; n < 5000; n++) {
        release(strdup("a string of the C library's"));
        char *block = allocate(n);
        block = realloc(block, 2 * n);
        memset(block, n, 2 * n);
        free(block);
    }

    size_t bytes = hazard_bytes();
    int (*advise)(void *, size_t, int) = next("madvise");
    int (*unmap)(void *, size_t) = next("munmap");
    char *p = map_private(bytes);
    fill(p, bytes, 1);
    CHECK(advise(p, bytes, MADV_DONTNEED) == 0);
    CHECK(all_zero(p, bytes));
    CHECK(unmap(p, bytes) == 0);

    CHECK(next("a_function_that_is_nowhere") == NULL && why() != NULL && why() == NULL);
    CHECK(next("getpid") != NULL);
    CHECK(dlclose(plugin) == 0);
    return 0;
}
