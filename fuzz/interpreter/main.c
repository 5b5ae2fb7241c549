/* Carries out a program of operations, one a line, and logs the result of each.
 *
 *     interpreter PROGRAM LOG
 *
 * An operation that has others carry out a part opens a block, which a line "end"
 * closes. The working folder is on a disk. */
#include "log.h"
#include "content.h"
#include "region.h"
#include "mapping.h"
#include "access.h"
#include "process.h"
#include "event.h"
#include "heap.h"
#include "transfer.h"
#include "start.h"

#define MOST_LINES 4096

struct line { char text[120]; char name[24]; long a[8]; int end; };
static struct line lines[MOST_LINES];
static int line_count;

static int parse(FILE *file)
{
    int open[64], depth = 0;
    char text[256];
    while (line_count < MOST_LINES && fgets(text, sizeof text, file)) {
        struct line *line = &lines[line_count];
        text[strcspn(text, "#\n")] = 0;
        int used = 0;
        if (sscanf(text, "%23s%n", line->name, &used) != 1)
            continue;
        snprintf(line->text, sizeof line->text, "%s", text + strspn(text, " "));
        const char *rest = text + used;
        for (int n = 0; n < 8 && sscanf(rest, "%ld%n", &line->a[n], &used) == 1; n++)
            rest += used;
        if (!strcmp(line->name, "end")) {
            if (!depth)
                return 0;
            lines[open[--depth]].end = line_count;
        }
#define PLAIN(name, count)
#define BLOCK(operation, count) if (!strcmp(line->name, #operation) && depth < 64) open[depth++] = line_count;
#include "operations.h"
#undef PLAIN
#undef BLOCK
        line_count++;
    }
    return depth == 0;
}

#define PASS_0(a)
#define PASS_1(a) a[0]
#define PASS_2(a) a[0], a[1]
#define PASS_3(a) a[0], a[1], a[2]
#define PASS_4(a) a[0], a[1], a[2], a[3]
#define PASS_5(a) a[0], a[1], a[2], a[3], a[4]
#define PASS_6(a) a[0], a[1], a[2], a[3], a[4], a[5]
#define PASS_7(a) a[0], a[1], a[2], a[3], a[4], a[5], a[6]

static void run_lines(const struct block *block)
{
    for (int i = block->from; i < block->to; i++) {
        struct line *line = &lines[i];
        begin_operation(line->text);
#define PLAIN(operation, count)                                                                \
    if (!strcmp(line->name, #operation)) {                                                     \
        operation(PASS_##count(line->a));                                                      \
    } else
#define BLOCK(operation, count)                                                                \
    if (!strcmp(line->name, #operation)) {                                                     \
        struct block part = {run_lines, i + 1, line->end};                                     \
        operation(&part, PASS_##count(line->a));                                               \
        i = line->end;                                                                         \
    } else
#include "operations.h"
        {
            result(" unknown");
        }
#undef PLAIN
#undef BLOCK
        end_operation();
    }
}

int main(int count, char **words)
{
    FILE *file = count >= 3 ? fopen(words[1], "r") : NULL;
    if (!file || !parse(file))
        return 2;
    fclose(file);
    begin_program(count, words);
    struct block part = {run_lines, 0, line_count};
    if (count == 5) {
        part.from = atoi(words[4]);
        part.to = lines[part.from - 1].end;
    }
    run_lines(&part);
    atomic_store(&pressure_stop, 1);
    return 0;
}
