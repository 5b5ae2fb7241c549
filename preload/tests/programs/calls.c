/* Random memory calls on 64 pages, and what can be seen of them afterwards: results,
 * error numbers, which pages are mapped, readable, writeable, and their contents. Run
 * with the kernel's own calls and with emulated ones, the transcripts must be equal.
 *
 * Nothing here allocates: a mapping the kernel places could fall into the pages' holes. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };
static char *base;
static uint64_t state;
static char line[512];

static uint64_t draw(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) % below;
}

static void say(const char *what, long result)
{
    long shown = result;
    if (result > 0 && (uintptr_t)result >= (uintptr_t)base && (uintptr_t)result < (uintptr_t)base + PAGES * PAGE)
        shown = result - (long)base;
    int n = snprintf(line, sizeof line, "%s = %ld (%d)\n", what, shown, result == -1 ? errno : 0);
    if (write(1, line, n) != n)
        _exit(2);
}

static void look(void)
{
    static char text[PAGES * 20];
    int n = 0;
    for (int i = 0; i < PAGES; i++) {
        char *page = base + i * PAGE;
        uint64_t word = 0;
        struct iovec here = {&word, 8}, there = {page + 16, 8};
        if (madvise(page, PAGE, MADV_NORMAL) != 0) {
            text[n++] = '.';
            continue;
        }
        int readable = process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 8;
        uint64_t kept = word;
        here.iov_base = &kept, there.iov_base = page + 8;
        int writeable = readable && process_vm_writev(getpid(), &here, 1, &there, 1, 0) == 8;
        n += sprintf(text + n, "%c%llx", writeable ? 'w' : readable ? 'r' : '-', (unsigned long long)word % 4096);
    }
    text[n++] = '\n';
    if (write(1, text, n) != n)
        _exit(2);
}

static int access_bits(void)
{
    static const int bits[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_EXEC};
    return bits[draw(5)];
}

int main(int argc, char **argv)
{
    state = 88172645463325252ull + strtoull(argv[1], 0, 10) * 7919;
    int steps = argc > 2 ? atoi(argv[2]) : 300;
    int file = memfd_create("pages", 0);
    for (uint64_t i = 0; i < 2 * PAGES; i++) {
        uint64_t word = 1000 + i;
        if (pwrite(file, &word, 8, i * PAGE + 16) != 8)
            return 2;
    }
    ftruncate(file, 2 * PAGES * PAGE);
    /* Eight more pages keep what lies behind out of the game. */
    base = mmap(NULL, (PAGES + 8) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return 2;
    for (int step = 0; step < steps; step++) {
        int first = draw(PAGES), count = 1 + draw(draw(4) ? 4 : PAGES);
        if (first + count > PAGES)
            count = PAGES - first;
        char *at = base + first * PAGE;
        size_t len = (size_t)count * PAGE - draw(3) * 100;
        int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
        switch (draw(16)) {
        case 0:
            say("anonymous", (long)mmap(at, len, access_bits(), anonymous | MAP_FIXED, -1, 0));
            break;
        case 1:
            say("noreplace", (long)mmap(at, len, access_bits(), anonymous | MAP_FIXED_NOREPLACE, -1, 0));
            break;
        case 2:
            say("file", (long)mmap(at, len, access_bits(), MAP_PRIVATE | MAP_FIXED, file, draw(PAGES) * PAGE));
            break;
        case 3:
            say("shared", (long)mmap(at, len, access_bits(), MAP_SHARED | MAP_FIXED, file, draw(PAGES) * PAGE));
            break;
        case 4:
            say("munmap", munmap(at, len));
            break;
        case 5:
        case 6:
            say("mprotect", mprotect(at, len, access_bits()));
            break;
        case 7:
            say("dontneed", madvise(at, len, MADV_DONTNEED));
            break;
        case 8: {
            static const int advice[] = {MADV_WILLNEED, MADV_RANDOM, MADV_DONTFORK, MADV_DOFORK, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_REMOVE, 77};
            int which = draw(8);
            snprintf(line + 400, 100, "advice %d", which);
            say(line + 400, madvise(at, len, advice[which]));
            break;
        }
        case 9:
            say("grow", (long)mremap(at, PAGE, (1 + draw(3)) * PAGE, 0));
            break;
        case 10:
            say("move", (long)mremap(at, PAGE, (1 + draw(2)) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base + draw(PAGES - 1) * PAGE));
            break;
        case 11:
        case 12:
        case 13: {
            uint64_t word = step;
            struct iovec here = {&word, 8}, there = {at + 16, 8};
            say("write", process_vm_writev(getpid(), &here, 1, &there, 1, 0));
            break;
        }
        case 14:
            switch (draw(8)) {
            case 0: say("unaligned munmap", munmap(at + 8, len)); break;
            case 1: say("empty munmap", munmap(at, 0)); break;
            case 2: say("unaligned mprotect", mprotect(at + 8, len, PROT_READ)); break;
            case 3: say("empty mprotect", mprotect(at, 0, PROT_READ)); break;
            case 4: say("unaligned fixed", (long)mmap(at + 8, len, PROT_READ, anonymous | MAP_FIXED, -1, 0)); break;
            case 5: say("no file", (long)mmap(at, len, PROT_READ, MAP_PRIVATE | MAP_FIXED, 99, 0)); break;
            case 6: say("overlap", (long)mremap(at, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at)); break;
            case 7:
                if (at != base)
                    say("old length 0", (long)mremap(at, 0, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, base));
                break;
            }
            break;
        case 15:
            if (draw(2))
                say("mlock", mlock(at, len));
            else
                say("munlock", munlock(at, len));
            break;
        }
        look();
    }
    return 0;
}
