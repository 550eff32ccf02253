/* Closing a listener resets what nobody accepted. */
#include "behaviour.h"

int main(void) {
    int s = listener(), c = dial(s);
    char b;
    struct sockaddr_in a = where(s);
    TRY(close(s));
    TRY(recv(c, &b, 1, 0));
    int d = socket(AF_INET, SOCK_STREAM, 0);
    TRY(connect(d, (struct sockaddr *)&a, sizeof a));
}
