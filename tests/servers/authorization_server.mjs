// An authorization server, oidc-provider, on a free port of this machine: node authorization_server.mjs PATH_OF_PACKAGE
//
// Its first line is JSON: its issuer and its private key. Each user is "ann" and agrees to everything. The client "robot"
// gets a token for itself, "eternal" one that lives for a month. `POST /rotate` replaces the key; the answer is the new one.
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const { default: Provider } = await import(pathToFileURL(process.argv[2]).href);
const SCOPES = "missions:read missions:write tools:call tasks:* approvals:answer operator approve-own";
const MONTH = 30 * 86400;

const newKey = () => {
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  return { ...privateKey.export({ format: "jwk" }), kid: randomUUID(), alg: "ES256", use: "sig" };
};

const own = (client_id) => ({
  client_id,
  client_secret: "secret",
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
  token_endpoint_auth_method: "client_secret_post",
});

const newProvider = (issuer, key) => {
  const provider = new Provider(issuer, {
    jwks: { keys: [key] },
    scopes: ["openid", "offline_access", ...SCOPES.split(" ")],
    cookies: { keys: ["a", "b"] },
    clients: [own("robot"), own("eternal")],
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    enabledJWA: { idTokenSigningAlgValues: ["ES256"] },
    findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
    issueRefreshToken: (_ctx, client) => client.grantTypeAllowed("refresh_token"),
    ttl: { Interaction: 600, Session: 600, Grant: 600, RefreshToken: 600, AuthorizationCode: 60, IdToken: 600 },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      registration: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (_ctx, resource, client) => ({
          scope: SCOPES,
          audience: resource,
          accessTokenFormat: "jwt",
          accessTokenTTL: client.clientId === "eternal" ? MONTH : 600,
          jwt: { sign: { alg: "ES256" } },
        }),
      },
    },
  });
  provider.on("server_error", (_ctx, error) => console.error(error));
  return provider;
};

const agree = async (provider, request, response) => {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: "ann" } });
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope((prompt.details.missingOIDCScope ?? []).join(" "));
  for (const [resource, scopes] of Object.entries(prompt.details.missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(" "));
  }
  return provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
};

let key = newKey();
let provider;
const server = createServer(async (request, response) => {
  if (request.url === "/rotate") {
    key = newKey();
    provider = newProvider(provider.issuer, key);
    response.end(JSON.stringify(key));
  } else if (request.url.startsWith("/interaction/")) {
    await agree(provider, request, response);
  } else {
    provider.callback()(request, response);
  }
});
process.stdin.resume().on("end", () => process.exit()); // its test has ended
server.listen(0, "127.0.0.1", () => {
  provider = newProvider(`http://127.0.0.1:${server.address().port}`, key);
  console.log(JSON.stringify({ issuer: provider.issuer, key }));
});
