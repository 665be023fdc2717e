"""A page that shows ``/openapi.json``, without anything from another host."""

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rigcanary runner</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}
h2{font-size:1.05rem;margin:1.6rem 0 .2rem} code,pre{font-family:ui-monospace,monospace}
b{display:inline-block;min-width:4.5rem} pre{background:#8881;padding:.6rem;overflow:auto}
:root{color-scheme:light dark}
</style></head><body>
<h1>rigcanary runner</h1>
<p>Described by <a href="openapi.json">openapi.json</a>. Routes marked with a key want
<code>Authorization: Bearer TOKEN</code>; the token lies in the file that the runner names at
its start.</p><main>Loading openapi.json &hellip;</main>
<script>
const main=document.querySelector("main");
const add=(tag,text,into=main)=>{const e=document.createElement(tag);e.textContent=text;
  into.append(e);return e};
const named=s=>!s?"":s.$ref?s.$ref.split("/").pop():s.type==="array"?named(s.items)+"[]":
  (s.title||s.type||"");
const body=c=>c&&c["application/json"]?named(c["application/json"].schema):"";
fetch("openapi.json").then(r=>r.json()).then(api=>{
  main.textContent="";
  for(const [path,verbs] of Object.entries(api.paths))for(const [verb,op] of Object.entries(verbs)){
    const h=add("h2","");add("b",verb.toUpperCase(),h);add("code",path,h);
    if(op.security)add("span"," \\u{1F511}",h);
    add("p",op.description||op.summary||"");
    const asks=body(op.requestBody&&op.requestBody.content);
    const gives=Object.entries(op.responses).map(([c,r])=>c+" "+(body(r.content)||r.description));
    add("p",(asks?"takes "+asks+"; ":"")+"answers "+gives.join(", "));
  }
  add("h2","Shapes");
  for(const [name,s] of Object.entries((api.components||{}).schemas||{})){
    const d=add("details","");add("summary",name,d);add("pre",JSON.stringify(s,null,1),d)}
}).catch(e=>{main.textContent="openapi.json could not be read: "+e});
</script></body></html>
"""
