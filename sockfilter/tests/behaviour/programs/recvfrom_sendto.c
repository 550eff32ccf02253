/* recvfrom returns no sender on a stream, sendto needs no address. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    struct sockaddr_in a = here(9);
    socklen_t len = sizeof a;
    char b[8];
    TRY(sendto(e.client, "one", 3, 0, (struct sockaddr *)&a, sizeof a));
    TRY(sendto(e.client, "two", 3, 0, NULL, 0));
    arrived(e.server, 6);
    TRY(recvfrom(e.server, b, 3, 0, (struct sockaddr *)&a, &len));
    say("%u", len);
    len = 55;
    TRY(recvfrom(e.server, b, 3, 0, NULL, &len));
    say("%u", len);
    len = sizeof a;
    TRY(recvfrom(e.server, b, 3, MSG_DONTWAIT, (struct sockaddr *)&a, &len));
    say("%u", len);
}
