/* The forms of read, recv, recvfrom, poll and select that programs compiled with -D_FORTIFY_SOURCE call. */
#include "behaviour.h"

/* Lengths that the compiler does not know are checked when the program runs. */
static volatile int four = 4, one = 1, none = 0, twice = 2;
static void *sends(void *ends) {
    await_thread_asleep();
    send(((struct ends *)ends)->client, "late", 4, 0);
    return NULL;
}
static void dies(int way) {
    pid_t pid = MUST(fork());
    if (pid == 0) {
        char small[4];
        struct pollfd p[1] = {{-1, 0, 0}};
        struct ends e = ends();
        close(2);
        switch (way) {
        case 0: read(e.server, small, four * twice); break;
        case 1: recv(e.server, small, four * twice, MSG_DONTWAIT); break;
        case 2: recvfrom(e.server, small, four * twice, MSG_DONTWAIT, NULL, NULL); break;
        case 3: p->fd = e.server, poll(p, twice, none); break;
        }
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0));
    say("%d ends by %s", way, WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : "itself");
}
int main(void) {
    struct ends e = ends();
    char b[4];
    struct pollfd p[2] = {{e.server, POLLIN}, {e.client, POLLOUT}};
    struct timespec time = {0, 1000000};
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    fd_set set;
    MUST(send(e.client, "aaaabbbbccccd", 13, 0));
    arrived(e.server, 13);
    TRY(read(e.server, b, four));
    TRY(recv(e.server, b, four, none));
    TRY(recvfrom(e.server, b, four, none, (struct sockaddr *)&a, &len));
    say("%.4s", b);
    TRY(poll(p, twice, none));
    TRY(ppoll(p, twice, &time, NULL));
    FD_ZERO(&set);
    FD_SET(e.server + none, &set);
    TRY(select(e.server + one, &set, NULL, NULL, NULL));
    TRY(recv(e.server, b, one, MSG_PEEK));
    TRY(read(e.server, b, one));
    TRY(recv(e.server, b, four, MSG_DONTWAIT));
    TRY(poll(p, one, one));
    TRY(ppoll(p, one, &time, NULL));
    /* They wait too. */
    pthread_t t;
    this_thread();
    pthread_create(&t, NULL, sends, &e);
    TRY(read(e.server, b, four));
    pthread_join(t, NULL);
    TRY(dprintf(e.server, "%d", four));
    TRY(recv(e.client, b, four, none));
    /* What does not fit ends the program. */
    for (int way = 0; way < 4; way++) dies(way);
}
