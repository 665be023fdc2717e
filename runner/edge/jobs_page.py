"""A page with the jobs and their loss curves; asks for the token, loads nothing from elsewhere."""

from typing import Final

PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rigcanary · jobs</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:1.5rem auto;padding:0 1rem}
article{border:1px solid #8886;border-radius:.4rem;padding:.6rem .9rem;margin:.8rem 0}
h2{font-size:1rem;margin:0} p{margin:.15rem 0} .error{color:#c33} .dim{opacity:.7}
svg{width:100%;height:8rem;background:#8881} polyline{fill:none;stroke-width:1.5;
  vector-effect:non-scaling-stroke} form{margin:1rem 0}
</style></head><body>
<h1>Jobs</h1>
<form hidden><label>Token <input type="password" autocomplete="off" size="50"></label>
<button>Look</button>
<span class="dim">from the file that the runner names at its start</span></form>
<p id="state" role="status">Loading &hellip;</p><main></main>
<script>
"use strict";
const main=document.querySelector("main"),form=document.querySelector("form"),
  state=document.querySelector("#state"),svgNs="http://www.w3.org/2000/svg";
const colours=["#2a78c5","#c2571a","#2c8f4e","#8a4fc0","#b03060"];
let token=sessionStorage.getItem("token")||"";
if(location.hash.startsWith("#token=")){token=decodeURIComponent(location.hash.slice(7));
  history.replaceState(null,"",location.pathname)}
const add=(into,tag,text,name)=>{const e=document.createElement(tag);e.textContent=text;
  if(name)e.className=name;into.append(e);return e};
const get=async path=>{
  const r=await fetch(path,{headers:{Authorization:"Bearer "+token}});
  if(r.status===401){form.hidden=false;throw new Error("a token is needed")}
  if(!r.ok)throw new Error("the runner answered "+r.status);
  return r.json()};
form.addEventListener("submit",e=>{e.preventDefault();
  token=form.querySelector("input").value.trim();form.hidden=true;look()});
// One line a start, so that a move shows as a change of colour; x is the step.
function curve(points){
  const seen=points.filter(p=>p.loss!==null);
  const svg=document.createElementNS(svgNs,"svg");
  svg.setAttribute("viewBox","0 0 1000 100");svg.setAttribute("preserveAspectRatio","none");
  svg.setAttribute("role","img");svg.setAttribute("aria-label","loss over steps");
  if(seen.length<2)return svg;
  const lo=(f,g)=>seen.reduce((m,p)=>f(m,g(p)),g(seen[0]));
  const x0=lo(Math.min,p=>p.step),x1=lo(Math.max,p=>p.step),
    y0=lo(Math.min,p=>p.loss),y1=lo(Math.max,p=>p.loss);
  const at=p=>((p.step-x0)/((x1-x0)||1)*1000).toFixed(1)+","+
    (96-(p.loss-y0)/((y1-y0)||1)*92).toFixed(1);
  const starts=new Map();
  for(const p of seen)starts.set(p.generation,[...(starts.get(p.generation)||[]),at(p)]);
  for(const [generation,line] of starts){
    const l=document.createElementNS(svgNs,"polyline");
    l.setAttribute("points",line.join(" "));
    l.setAttribute("stroke",colours[generation%colours.length]);svg.append(l)}
  return svg}
function card(job,points){
  const a=add(main,"article","");
  add(a,"h2",job.name+" \\u00b7 "+job.state);
  const where=job.places.map(p=>p.node+(p.device?"/"+p.device:"")).join(", ");
  add(a,"p",[job.id,where,job.step===null?"":"step "+job.step,
    job.loss===null?"":"loss "+job.loss.toPrecision(4),
    job.steps_per_second===null?"":job.steps_per_second.toPrecision(3)+" steps/s",
    job.goodput===null?"":"goodput "+Math.round(job.goodput*100)+" %",
    "start "+job.generation].filter(Boolean).join(" \\u00b7 "),"dim");
  if(job.error)add(a,"p",job.error,"error");
  a.append(curve(points))}
async function look(){
  try{
    const jobs=await get("v1/jobs?limit=20");
    const all=await Promise.all(jobs.map(j=>get("v1/jobs/"+j.id+"/progress?limit=300")));
    sessionStorage.setItem("token",token);
    main.textContent="";jobs.forEach((job,i)=>card(job,all[i]));
    state.textContent=jobs.length+" jobs, the newest first \\u00b7 "+
      new Date().toLocaleTimeString();
    setTimeout(look,3000)
  }catch(e){state.textContent="Not up to date: "+e.message;if(form.hidden)setTimeout(look,5000)}}
if(token)look();else{form.hidden=false;state.textContent="Give the token to look."}
</script></body></html>
"""
