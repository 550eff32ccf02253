/* daemon(3): the listener and a connection go with the daemon; the parent ends at once. */
#include "behaviour.h"

int main(void) {
    int s = listener(), out = MUST(dup(1)), done[2];
    struct sockaddr_in a = where(s);
    struct ends e = ends_at(s);
    char b[8] = {0};
    MUST(pipe(done));
    pid_t first = MUST(fork());
    if (first == 0) {
        MUST(daemon(1, 0));
        /* Standard output is /dev/null now. */
        MUST(dup2(out, 1));
        pid_t own = getpid();
        MUST(write(done[1], &own, sizeof own));
        int c = MUST(accept(s, NULL, NULL));
        TRY(recv(c, b, 5, MSG_WAITALL));
        say("a session of its own: %d", getsid(0) != getsid(getppid()));
        say("%s", b);
        TRY(send(c, "served", 6, 0));
        TRY(send(e.server, "kept", 4, 0));
        close(c), close(e.server);
        MUST(write(done[1], "x", 1));
        _exit(0);
    }
    int status;
    MUST(waitpid(first, &status, 0));
    say("the parent ended with %d", WEXITSTATUS(status));
    close(s), close(e.server), close(done[1]);
    /* Until the daemon accepts, nobody listens: a forked child makes a listener known when it uses it. */
    pid_t daemon;
    MUST(read(done[0], &daemon, sizeof daemon));
    await_asleep(daemon);
    int c, refused;
    do {
        c = MUST(socket(AF_INET, SOCK_STREAM, 0));
        refused = connect(c, (struct sockaddr *)&a, sizeof a);
        if (refused) close(c), usleep(10000);
    } while (refused && errno == ECONNREFUSED);
    MUST(refused);
    MUST(send(c, "hello", 5, 0));
    MUST(read(done[0], b, 1));
    memset(b, 0, sizeof b);
    TRY(recv(c, b, 6, MSG_WAITALL));
    say("%s", b);
    TRY(recv(c, b, 1, 0));
    TRY(recv(e.client, b, 4, MSG_WAITALL));
    TRY(recv(e.client, b, 1, 0));
}
