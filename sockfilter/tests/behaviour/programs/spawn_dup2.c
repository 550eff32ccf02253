/* posix_spawn with a connection that has close-on-exec as the child's standard input and output, as inetd's kin and Rust's Command
 * do it: the actions name it, so that the child has it all the same. */
#include "behaviour.h"
#include <spawn.h>

enum { LEN = 300000 };
static unsigned char sent[LEN], got[LEN];

static void *sends(void *client) {
    for (long at = 0; at < LEN;) at += MUST(send((long)client, sent + at, LEN - at, 0));
    MUST(shutdown((long)client, SHUT_WR));
    return NULL;
}

/* A connection of which the child gets the server's end; `through` duplicates by one descriptor more, `waits` has it watched. */
static void serve(const char *path, int by_path, int through, int waits) {
    extern char **environ;
    int s = listener(), set = MUST(epoll_create1(EPOLL_CLOEXEC)), status, c = dial(s);
    MUST(fcntl(s, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(c, F_SETFD, FD_CLOEXEC));
    int server = MUST(accept4(s, NULL, NULL, SOCK_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN};
    if (waits) MUST(epoll_ctl(set, EPOLL_CTL_ADD, server, &event));

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    TRY(posix_spawn_file_actions_adddup2(&actions, server, through ? 30 : 0));
    if (through) TRY(posix_spawn_file_actions_adddup2(&actions, 30, 0));
    TRY(posix_spawn_file_actions_adddup2(&actions, server, 1));
    pid_t child;
    char *arguments[] = {"cat", NULL};
    TRY((by_path ? posix_spawnp : posix_spawn)(&child, path, &actions, NULL, arguments, environ));
    posix_spawn_file_actions_destroy(&actions);
    close(server);

    pthread_t thread;
    memset(got, 0, LEN);
    pthread_create(&thread, NULL, sends, (void *)(long)c);
    TRY(recv(c, got, LEN, MSG_WAITALL));
    TRY(memcmp(sent, got, LEN));
    TRY(recv(c, got, 1, 0));
    pthread_join(thread, NULL);
    MUST(waitpid(child, &status, 0));
    TRY(status);
    close(c), close(s), close(set);
}

int main(void) {
    for (int i = 0; i < LEN; i++) sent[i] = i * 2654435761u >> 24;
    serve("/bin/cat", 0, 0, 0);
    serve("cat", 1, 1, 0);
    serve("/bin/cat", 0, 0, 1);

    /* Actions that were destroyed, or initialised anew, name nothing: the connection stays here. */
    posix_spawn_file_actions_t actions;
    struct ends e = ends();
    MUST(fcntl(e.client, F_SETFD, FD_CLOEXEC));
    MUST(fcntl(e.server, F_SETFD, FD_CLOEXEC));
    for (int i = 0; i < 400; i++) {
        posix_spawn_file_actions_init(&actions);
        MUST(posix_spawn_file_actions_adddup2(&actions, 2, 0));
        MUST(posix_spawn_file_actions_adddup2(&actions, 2, 1));
        if (i % 2) posix_spawn_file_actions_destroy(&actions);
    }
    posix_spawn_file_actions_init(&actions);
    pid_t child;
    int status;
    char *arguments[] = {"true", NULL};
    TRY(posix_spawn(&child, "/bin/true", &actions, NULL, arguments, NULL));
    MUST(waitpid(child, &status, 0));
    TRY(status);
    TRY(send(e.client, "here", 4, 0));
    TRY(recv(e.server, got, 4, MSG_WAITALL));
}
