/* A connection behind a stream of the C library ends with fclose, and its number means the next thing that gets it. */
#include "behaviour.h"

int main(void) {
    char line[64];
    for (int i = 0; i < 40; i++) {
        struct ends e = ends();
        FILE *stream = fdopen(e.server, "r+");
        if (!stream) return 99;
        MUST(send(e.client, "hello\n", 6, 0));
        if (!fgets(line, sizeof line, stream)) say("no line");
        fputs("bye\n", stream);
        if (fclose(stream)) say("fclose: %s", strerrorname_np(errno));
        int ends[2];
        MUST(pipe(ends));
        int taken = ends[0] == e.server || ends[1] == e.server;
        close(ends[1]);
        long first = read(ends[0], line, 1), second = read(ends[0], line, 1);
        if (!taken || first != 0 || second != 0) say("%d: taken %d, read %ld, %ld", i, taken, first, second);
        close(ends[0]);
        long got = recv(e.client, line, sizeof line, MSG_WAITALL);
        if (got != 4) say("%d: %ld bytes", i, got);
        close(e.client);
    }
    say("all of them");
}
