// Makes calls through a TypeScript SDK and prints what its user gets: one JSON document.
// node calls.mjs FOLDER-OF-NODE_MODULES v1|v2 URL CALLS, where CALLS is a JSON array of [tool, arguments].
// "$session" in the arguments is the session_id of the last result that has one.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, generation, url, calls] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { Client, StreamableHTTPClientTransport } =
  generation === "v2"
    ? await load("@modelcontextprotocol/client")
    : {
        ...(await load("@modelcontextprotocol/sdk/client/index.js")),
        ...(await load("@modelcontextprotocol/sdk/client/streamableHttp.js")),
      };

const client = new Client({ name: "journey", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools(); // from here on the client validates structured content
let session = "mission-0000000000000000";
const answers = [];
for (const [name, args] of JSON.parse(calls)) {
  const given = JSON.parse(JSON.stringify(args).replaceAll("$session", session));
  try {
    const { content, structuredContent, isError } = await client.callTool({ name, arguments: given });
    session = structuredContent?.session_id ?? session;
    answers.push({ name, text: content.map((part) => part.text).join("\n"), structuredContent, isError: !!isError });
  } catch (error) {
    answers.push({ name, thrown: String(error) });
  }
}
await client.close();
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), answers }));
