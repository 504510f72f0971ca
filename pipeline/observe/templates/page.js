const live = document.getElementById("live"), gone = document.getElementById("gone");
let lost = 0, busy = false, asked = 0;
const part = (path, more) => fetch(path + (location.search || "?") + (more || ""), { signal: AbortSignal.timeout(15000) });
async function fresh() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    const answer = await part("live");
    if (!answer.ok) throw new Error(answer.status);
    const text = await answer.text(), told = document.getElementById("cell");
    live.innerHTML = text;
    const now = document.getElementById("cell");
    if (told && now) now.textContent = told.textContent;
    document.title = live.querySelector("h1").textContent + document.title.slice(document.title.lastIndexOf(" ·"));
    gone.hidden = true; lost = 0;
  } catch (error) {
    lost = lost || Date.now();
    gone.textContent = "The server has not answered for " + Math.round((Date.now() - lost) / 1000) + " s: the process that serves this page has stopped, or its machine cannot be reached. The figures below are old.";
    gone.hidden = false;
  }
  busy = false;
}
function point(event) {
  const plane = event.target.closest && event.target.closest("svg.plane");
  clearTimeout(asked);
  if (!plane) return;
  const box = plane.getBoundingClientRect(), unit = plane.viewBox.baseVal.width / box.width;
  const at = "&x=" + ((event.clientX - box.left) * unit).toFixed(1) + "&y=" + ((event.clientY - box.top) * unit).toFixed(1);
  asked = setTimeout(async () => {
    try {
      const answer = await part("cell", at + "&at=" + encodeURIComponent(plane.dataset.at)), text = await answer.text();
      if (answer.ok && text) document.getElementById("cell").textContent = text;
    } catch (error) { /* the next look says so */ }
  }, event.type === "click" ? 0 : 150);
}
live.addEventListener("pointermove", point);
live.addEventListener("click", point);
document.addEventListener("visibilitychange", fresh);
setInterval(fresh, 1000 * document.body.dataset.every);
