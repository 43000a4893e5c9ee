export const where = 1;
