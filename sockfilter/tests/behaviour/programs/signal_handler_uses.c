/* A handler may use sockets. */
#include "behaviour.h"

static struct ends e;
static void writes(int s) { write(e.server, "handled", 7); }
int main(void) {
    e = ends();
    signal(SIGUSR1, writes);
    raise(SIGUSR1);
    char b[8] = {0};
    TRY(recv(e.client, b, 7, MSG_WAITALL));
    say("%s", b);
}
