/* A connection accepted in the parent is served by its child, and by both; it ends when the last of them closes it. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char buffer[100] = "";
    MUST(send(e.client, "before", 6, 0));
    arrived(e.server, 6);
    pid_t child = MUST(fork());
    if (child == 0) {
        close(e.client);
        TRY(recv(e.server, buffer, sizeof buffer, 0));
        say("%s", buffer);
        TRY(send(e.server, "child", 5, 0));
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    TRY(send(e.server, "parent", 6, 0));
    TRY(recv(e.client, buffer, 11, MSG_WAITALL));
    say("%.11s", buffer);
    TRY(recv(e.client, buffer, 1, MSG_DONTWAIT));
    close(e.server);
    TRY(recv(e.client, buffer, 1, 0));
}
