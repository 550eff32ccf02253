/* A child that outlives its parent goes on with a connection that was made before. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    int gone[2];
    MUST(pipe(gone));
    pid_t parent = MUST(fork());
    if (parent == 0) {
        if (MUST(fork()) > 0) _exit(0);
        close(e.client);
        char byte;
        MUST(read(gone[0], &byte, 1));
        TRY(recv(e.server, &byte, 1, 0));
        TRY(send(e.server, "outlived", 8, 0));
        _exit(0);
    }
    close(e.server);
    MUST(waitpid(parent, NULL, 0));
    MUST(send(e.client, "x", 1, 0));
    MUST(write(gone[1], "x", 1));
    char buffer[100] = "";
    long n, len = 0;
    while ((n = recv(e.client, buffer + len, sizeof buffer - len, 0)) > 0) len += n;
    say("%ld %s", n, buffer);
}
