export default "more"; export const a = 1;
