// Writes until its standard input ends: `node writer.js COORDINATOR TABLE USERS`, the token in BALANCER_TOKEN.
// Prints a line for every acknowledged row, and a last line with what went wrong. The suite runs it while tablets move.
import { Router } from "./index.js";

const [coordinator, table, users] = process.argv.slice(2);
const router = new Router([coordinator], { token: process.env.BALANCER_TOKEN, size: 4 });
let stopped = false;
process.stdin.on("data", () => {}).on("end", () => (stopped = true));

const failures = [];
async function write(lane) {
  for (let n = 0; !stopped; n += 1) {
    const id = 1_000_000 + lane * 100_000 + n;
    try {
      await router.transaction(table, [id], async (client) => {
        await client.query(`INSERT INTO ${table} (id, note) VALUES ($1, 'node')`, [id]);
      });
      console.log(`written ${id}`);
      const rows = await router.transaction(table, [id], (client) =>
        client.query(`SELECT note FROM ${table} WHERE id = $1`, [id]), { readOnly: true });
      if (rows.rowCount !== 1) failures.push(`row ${id} was read ${rows.rowCount} times`);
      await router.run(table, [id], (client) => client.query(`UPDATE ${table} SET note = 'seen' WHERE id = $1`, [id]));
    } catch (error) {
      failures.push(`row ${id}: ${error.message}`);
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

await Promise.all(Array.from({ length: Number(users) }, (_, lane) => write(lane)));
await router.close();
console.log(JSON.stringify({ failures }));
