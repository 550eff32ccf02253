/* SIGPIPE comes with EPIPE unless MSG_NOSIGNAL is given; by write it always comes. */
#include "behaviour.h"

static volatile int pipes;
static void count(int s) { pipes++; }
int main(void) {
    struct ends e = ends();
    signal(SIGPIPE, count);
    TRY(shutdown(e.client, SHUT_WR));
    TRY(send(e.client, "x", 1, MSG_NOSIGNAL));
    say("%d", pipes);
    TRY(send(e.client, "x", 1, 0));
    say("%d", pipes);
    TRY(write(e.client, "x", 1));
    say("%d", pipes);
    struct iovec v = {"x", 1};
    TRY(writev(e.client, &v, 1));
    say("%d", pipes);
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    TRY(sendmsg(e.client, &m, MSG_NOSIGNAL));
    TRY(sendmsg(e.client, &m, 0));
    say("%d", pipes);
    signal(SIGPIPE, SIG_DFL);
    pid_t child = fork();
    if (child == 0) {
        struct ends own = ends();
        shutdown(own.client, SHUT_WR);
        write(own.client, "x", 1);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    say("killed by %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}
