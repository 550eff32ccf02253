/* tee keeps a copy of what splice sends. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int p[2], q[2];
    char b[16] = {0};
    MUST(pipe(p));
    MUST(pipe(q));
    send(e.client, "abcdef", 6, 0);
    arrived(e.server, 6);
    TRY(splice(e.server, NULL, p[1], NULL, 100, 0));
    TRY(tee(p[0], q[1], 100, 0));
    TRY(splice(p[0], NULL, e.server, NULL, 100, 0));
    arrived(e.client, 6);
    TRY(recv(e.client, b, 16, 0));
    say("%s", b);
    memset(b, 0, sizeof b);
    TRY(read(q[0], b, 16));
    say("%s", b);
}
