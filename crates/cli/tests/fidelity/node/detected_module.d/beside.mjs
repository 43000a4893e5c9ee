export const where = import.meta.url;
