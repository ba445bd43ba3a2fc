#include "lexer.h"
#include <ctype.h>
#include <stdlib.h>

void next(struct lexer *lexer) {
    while (isspace((unsigned char)*lexer->rest))
        lexer->rest++;
    struct token *token = &lexer->token;
    unsigned char first = (unsigned char)*lexer->rest;
    if (first == 0) {
        token->kind = END;
    } else if (isdigit(first) || first == '.') {
        char *end;
        token->kind = NUMBER;
        token->number = strtod(lexer->rest, &end);
        lexer->rest = end;
    } else if (isalpha(first)) {
        unsigned length = 0;
        token->kind = NAME;
        while (isalnum((unsigned char)*lexer->rest) && length < sizeof token->name - 1)
            token->name[length++] = *lexer->rest++;
        token->name[length] = 0;
    } else {
        token->kind = SIGN;
        token->sign = *lexer->rest++;
    }
}
