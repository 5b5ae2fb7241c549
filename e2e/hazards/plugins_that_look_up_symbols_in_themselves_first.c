/* Plug-ins loaded with RTLD_DEEPBIND take memory that the program allocated, and give it
 * theirs, as the extensions of PHP do. The loader still finds what a plug-in loads by that plug-in's run path. */
#include "hazard.h"

static void build(const char *source, const char *options)
{
    char command[256];
    snprintf(command, sizeof command, "cc -shared -fPIC -x c -O1 %s -", options);
    FILE *compiler = popen(command, "w");
    CHECK(compiler && fputs(source, compiler) >= 0 && pclose(compiler) == 0);
}

static void *symbol(void *plugin, const char *name)
{
    void *found = dlsym(plugin, name);
    CHECK(found);
    return found;
}

int main(void)
{
    char folder[] = "plugins.XXXXXX", options[128], path[64];
    CHECK(mkdtemp(folder));
    snprintf(options, sizeof options, "-o %s/other.so", folder);
    build("int answer(void) { return 42; }", options);
    snprintf(options, sizeof options, "-Wl,-rpath,'$ORIGIN' -o %s/plugin.so", folder);
    build("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdlib.h>\n#include <string.h>\n"
          "#include <sys/mman.h>\n"
          "void release(void *p) { free(p); }\n"
          "char *take(int n) { char *p = malloc(n); memset(p, n, n); return p; }\n"
          "void unmap(void *p, long n) { munmap(p, n); }\n"
          "void *load(void) { return dlopen(\"other.so\", RTLD_NOW | RTLD_DEEPBIND); }\n",
          options);
    snprintf(path, sizeof path, "%s/plugin.so", folder);
    for (int how = 0; how < 2; how++) {
        int flags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
        void *plugin = how ? dlmopen(LM_ID_BASE, path, flags) : dlopen(path, flags);
        CHECK(plugin);
        void (*release)(void *) = symbol(plugin, "release");
        char *(*take)(int) = symbol(plugin, "take");
        void (*unmap)(void *, long) = symbol(plugin, "unmap");
        for (int n = 1; n < 20000; n++) {
            char *ours = malloc(n), *theirs = take(n);
            memset(ours, n, n);
            CHECK(memcmp(ours, theirs, n) == 0);
            release(ours);
            free(theirs);
        }
        long bytes = hazard_bytes();
        char *memory = map_private(bytes);
        fill(memory, bytes, 1);
        unmap(memory, bytes);
        int where = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        CHECK(mmap(memory, bytes, PROT_READ | PROT_WRITE, where, -1, 0) == memory);
        CHECK(all_zero(memory, bytes));
        CHECK(munmap(memory, bytes) == 0);
        void *(*load)(void) = symbol(plugin, "load");
        void *other = load();
        CHECK(other);
        int (*answer)(void) = symbol(other, "answer");
        CHECK(answer() == 42);
        dlclose(other);
        dlclose(plugin);
    }
    snprintf(options, sizeof options, "rm -r %s", folder);
    return system(options);
}
